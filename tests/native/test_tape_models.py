"""Tapes of transformers models, unchanged: bit for bit as on the CPU, guarded by what their code read back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("rouse_native._redirect", reason="the native core is not built")

from rouse_native import tape  # noqa: E402

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SMALL, "vocab_size": 90, "max_position_embeddings": 64}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 90}
EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 90}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 90}


def made(config: str, settings: dict[str, Any], model: str) -> torch.nn.Module:
    torch.manual_seed(0)
    built: torch.nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings)).eval()
    return built


def words(padded: int = 0, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, 90, (2, 12), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, -padded:] = 0
    return ids, mask


@torch.inference_mode()
@pytest.mark.parametrize(
    ("config", "settings", "model"),
    [
        ("LlamaConfig", {**TEXT, "use_cache": False}, "LlamaModel"),
        ("DistilBertConfig", DISTILBERT, "DistilBertModel"),
        ("Qwen2Config", {**TEXT, "num_key_value_heads": 2, "use_cache": False}, "Qwen2Model"),
        ("T5Config", T5, "T5EncoderModel"),
        # How many rows each expert has stays on the device: no guard, whatever the router chooses.
        ("MixtralConfig", {**TEXT, **EXPERTS, "num_local_experts": 4, "use_cache": False}, "MixtralModel"),
        ("Qwen3MoeConfig", {**TEXT, **EXPERTS, "num_experts": 4, "head_dim": 8, "use_cache": False}, "Qwen3MoeModel"),
        ("AlbertConfig", {**TEXT, "embedding_size": 16}, "AlbertModel"),
        ("BloomConfig", {**BLOOM, "use_cache": False}, "BloomModel"),
        ("DebertaV2Config", {**TEXT, "relative_attention": True, "position_buckets": 8}, "DebertaV2Model"),
    ],
    ids=["llama", "distilbert", "qwen2", "t5", "mixtral", "qwen3_moe", "albert", "bloom", "deberta_v2"],
)  # fmt: skip
def test_text_models_replay_bit_for_bit(rouse: str, config: str, settings: dict[str, Any], model: str) -> None:
    host = made(config, settings, model)
    device = made(config, settings, model).to(rouse)

    def function(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = device(input_ids=ids, attention_mask=mask).last_hidden_state
        return found

    for _ in range(4):
        tape.call(function, [each.to(rouse) for each in words()], model)
    for seed in range(3):
        ids, mask = words(seed=seed)
        replayed = tape.replay([ids.to(rouse), mask.to(rouse)], model)
        assert replayed.outcome is tape.Outcome.DONE, [one.refused for one in tape.infos()]
        assert torch.equal(replayed.outputs[0].cpu(), host(input_ids=ids, attention_mask=mask).last_hidden_state)


@torch.inference_mode()
def test_images_replay_bit_for_bit(rouse: str) -> None:
    settings = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1]}
    host, device = (made("ResNetConfig", settings, "ResNetForImageClassification") for _ in range(2))
    device.to(rouse)
    for seed in range(6):
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
        (found,) = tape.call(lambda x: device(x).logits, [x.to(rouse)], "resnet")
        assert torch.equal(found.cpu(), host(x).logits)
    assert sum(one.replays for one in tape.infos()) >= 3


@torch.inference_mode()
def test_padded_and_unpadded_batches_one_after_the_other(rouse: str) -> None:
    host, device = (made("BertConfig", TEXT, "BertModel") for _ in range(2))
    device.to(rouse)

    def function(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = device(input_ids=ids, attention_mask=mask).last_hidden_state
        return found

    for seed in range(12):
        ids, mask = words(padded=seed % 3 and 4, seed=seed)
        (found,) = tape.call(function, [ids.to(rouse), mask.to(rouse)], "bert")
        expected = host(input_ids=ids, attention_mask=mask).last_hidden_state
        assert torch.equal(found.cpu(), expected), f"request {seed}"
    replays = [one.replays for one in tape.infos() if one.recorded > 3]
    assert replays, "both ways, and each of them was replayed in the end"

"""Model families of transformers on the `rouse` device, unchanged, bit for bit as on the CPU with one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rouse_testkit.tensors import assert_same, moved

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**SMALL, "vocab_size": 90, "max_position_embeddings": 64}
EXPERTS = {"num_key_value_heads": 2, "num_experts_per_tok": 2}


def image(size: int = 32) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))}


def words(length: int = 12, padded: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 90, (2, length), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, -padded:] = 0
        ids[0, -padded:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def clip_inputs() -> dict[str, torch.Tensor]:
    return {**words(8), **image()}


def whisper_inputs() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(1, 16, 60, generator=torch.Generator().manual_seed(3))}


def sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 1200, generator=torch.Generator().manual_seed(4))}


def one_channel() -> dict[str, torch.Tensor]:
    return {"input_values": sound()["input_values"][:, None]}


def series() -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn(2, 32, 2, generator=torch.Generator().manual_seed(5))}


def translation() -> dict[str, torch.Tensor]:
    return {**words(12, 3), "decoder_input_ids": words(7)["input_ids"]}


Case = tuple[str, dict[str, Any], str, Callable[[], dict[str, torch.Tensor]]]
MODELS: dict[str, Case] = {
    "resnet": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 1]},
        "ResNetForImageClassification",
        image,
    ),
    "convnext": (
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        "ConvNextForImageClassification",
        image,
    ),
    "efficientnet": (
        "EfficientNetConfig",
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 32, "hidden_dim": 320},
        "EfficientNetForImageClassification",
        image,
    ),
    "vit": ("ViTConfig", {**SMALL, "image_size": 32, "patch_size": 8}, "ViTForImageClassification", image),
    "swin": (
        "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
        "SwinForImageClassification",
        image,
    ),
    "bert": ("BertConfig", TEXT, "BertForSequenceClassification", words),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 90, "max_position_embeddings": 64},
        "DistilBertModel",
        lambda: words(12, 3),
    ),
    "roberta": ("RobertaConfig", TEXT, "RobertaModel", lambda: words(12, 3)),
    "electra": ("ElectraConfig", {**TEXT, "embedding_size": 16}, "ElectraModel", words),
    "t5": (
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 90},
        "T5EncoderModel",
        lambda: words(12, 3),
    ),
    "whisper": (
        "WhisperConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "num_mel_bins": 16,
            "max_source_positions": 30,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "vocab_size": 90,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        "WhisperModel.encoder",
        whisper_inputs,
    ),
    "clip": (
        "CLIPConfig",
        {
            "text_config": {**TEXT, "eos_token_id": 2},
            "vision_config": {**SMALL, "image_size": 32, "patch_size": 8},
            "projection_dim": 16,
        },
        "CLIPModel",
        clip_inputs,
    ),
    "llama": ("LlamaConfig", {**TEXT, "num_key_value_heads": 2}, "LlamaForCausalLM", words),
    "qwen2": ("Qwen2Config", {**TEXT, "num_key_value_heads": 2}, "Qwen2ForCausalLM", lambda: words(12, 3)),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 90, "n_positions": 64},
        "GPT2LMHeadModel",
        words,
    ),
    "mistral": ("MistralConfig", {**TEXT, "num_key_value_heads": 2, "sliding_window": 8}, "MistralForCausalLM", words),
    "gemma2": ("Gemma2Config", {**TEXT, "num_key_value_heads": 2, "head_dim": 8}, "Gemma2ForCausalLM", words),
    "mobilenet": ("MobileNetV2Config", {"depth_multiplier": 0.35, "image_size": 32}, "MobileNetV2Model", image),
    "mpnet": ("MPNetConfig", TEXT, "MPNetModel", lambda: words(12, 3)),
    # Experts, chosen by counting in integers and multiplied in groups.
    "mixtral": ("MixtralConfig", {**TEXT, **EXPERTS, "num_local_experts": 4}, "MixtralForCausalLM", words),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**TEXT, **EXPERTS, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 24},
        "Qwen3MoeForCausalLM",
        words,
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **TEXT,
            **EXPERTS,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "head_dim": 4,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 24,
        },
        "DeepseekV3ForCausalLM",
        words,
    ),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 90}, "BloomModel", words),
    "mamba": ("MambaConfig", {**SMALL, "vocab_size": 90, "state_size": 8}, "MambaForCausalLM", words),
    "rwkv": ("RwkvConfig", {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 90}, "RwkvModel", words),
    "albert": ("AlbertConfig", {**TEXT, "embedding_size": 16}, "AlbertModel", lambda: words(12, 3)),
    "deberta_v2": (
        "DebertaV2Config",
        {**TEXT, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
        "DebertaV2Model",
        lambda: words(12, 3),
    ),
    "longformer": ("LongformerConfig", {**TEXT, "attention_window": 4}, "LongformerModel", lambda: words(12, 3)),
    "fnet": ("FNetConfig", {**SMALL, "vocab_size": 90}, "FNetModel", lambda: {"input_ids": words()["input_ids"]}),
    "bart": (
        "BartConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "vocab_size": 90,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
        },
        "BartForConditionalGeneration",
        translation,
    ),
    "segformer": (
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [4, 1],
            "hidden_sizes": [8, 16],
            "num_attention_heads": [1, 2],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        "SegformerForSemanticSegmentation",
        image,
    ),
    "levit": (
        "LevitConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [4, 4, 4],
        },
        "LevitForImageClassification",
        lambda: image(64),
    ),
    "wav2vec2": (
        "Wav2Vec2Config",
        {
            **SMALL,
            "conv_dim": [16, 16],
            "conv_stride": [5, 4],
            "conv_kernel": [10, 8],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
            "vocab_size": 32,
        },
        "Wav2Vec2ForCTC",
        sound,
    ),
    # Its LSTM is one operator.
    "encodec": (
        "EncodecConfig",
        {"num_filters": 4, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16, "upsampling_ratios": [4, 2]},
        "EncodecModel",
        one_channel,
    ),
    "patchtst": (
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 32,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 24,
            "prediction_length": 4,
        },
        "PatchTSTForPrediction",
        series,
    ),
}


def build(name: str) -> torch.nn.Module:
    config_name, settings, model_name, _ = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**settings)
    cls, _, part = model_name.partition(".")
    model: torch.nn.Module = getattr(transformers, cls)(config).eval()
    return getattr(model, part) if part else model


def tensors(output: Any) -> dict[str, Any]:
    return {key: value for key, value in output.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_family_gives_the_bits_of_the_cpu(rouse: str, name: str) -> None:
    model, inputs = build(name), MODELS[name][3]()
    with torch.no_grad():
        expected = tensors(model(**inputs))
        there = model.to(rouse)
        for _ in range(2):
            assert_same(tensors(there(**moved(inputs, rouse))), expected, name)


def test_bert_padded_and_unpadded_batches_one_after_the_other(rouse: str) -> None:
    model = build("bert")
    batches = [words(12), words(12, 4), words(12), words(9, 1), words(12, 4)]
    with torch.no_grad():
        expected = [tensors(model(**batch)) for batch in batches]
        there = model.to(rouse)
        for batch, each in zip(batches, expected, strict=True):
            assert_same(tensors(there(**moved(batch, rouse))), each)


HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"do_sample": True},
    "beam": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "mixtral", "mamba"])
def test_generating_with_a_cache_gives_the_tokens_of_the_cpu(rouse: str, name: str, how: str) -> None:
    if (name, how) == ("mamba", "static"):
        pytest.skip("a state space model has no cache of keys")
    model: Any = build(name)
    inputs = words(6)

    def generate(device: str) -> torch.Tensor:
        torch.manual_seed(5)
        made = model.to(device).generate(**moved(inputs, device), max_new_tokens=8, pad_token_id=0, **HOW[how])
        return torch.as_tensor(made.cpu())

    expected = generate("cpu")
    assert torch.equal(generate(rouse), expected)


@pytest.mark.parametrize("name", ["llama", "mixtral", "bart", "vit"])
def test_half_the_bits_and_attention_by_hand_are_the_cpus_too(rouse: str, name: str) -> None:
    model: Any = build(name)
    model.set_attn_implementation("eager")
    model, inputs = model.to(torch.bfloat16), MODELS[name][3]()
    inputs = {key: each.to(torch.bfloat16) if each.is_floating_point() else each for key, each in inputs.items()}
    with torch.inference_mode():
        expected = tensors(model(**inputs))
        assert_same(tensors(model.to(rouse)(**moved(inputs, rouse))), expected)


def test_templates_learnt_by_one_family_hold_in_another(rouse: str) -> None:
    """Experts write products into parts of one tensor; T5's writes a tensor of a part's very shape."""
    rows = torch.randn(14, 32, generator=torch.Generator().manual_seed(1)).to(rouse)
    torch.mm(rows, rows.T @ rows, out=torch.empty(14, 32, device=rouse))
    model, inputs = build("mixtral"), words()
    whole = torch.zeros(48, 32, device=rouse)
    torch.mm(rows, rows.T @ rows, out=whole[:14])
    assert whole.untyped_storage().nbytes() == 48 * 32 * 4
    with torch.no_grad():
        expected = tensors(model(**inputs))
        assert_same(tensors(model.to(rouse)(**moved(inputs, rouse))), expected)

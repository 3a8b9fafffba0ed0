"""Hugging Face directories in real instances give what transformers gives, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from rouse_testkit import models
from rouse_testkit.artefacts import Staged, Tensors, stage
from rouse_testkit.doubles_instance import RunningInstance

IDS: Tensors = [("input_ids", "INT64", [-1, -1]), ("attention_mask", "INT64", [-1, -1])]
PIXELS: Tensors = [("pixel_values", "FP32", [-1, 3, -1, -1])]
LOGITS: Tensors = [("logits", "FP32", [-1, -1, -1])]
TINY_BERT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 101,
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in an instance: sums in another order would be other sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def staged(tmp_path: Path, inputs: Tensors, outputs: Tensors) -> Staged:
    (tmp_path / "images").mkdir(exist_ok=True)
    (tmp_path / "run").mkdir(exist_ok=True)
    return stage(tmp_path / "hf", tmp_path / "images", name="f", inputs=inputs, outputs=outputs)


def texts() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(1).integers(0, 101, (2, 9))
    return {"input_ids": ids, "attention_mask": np.array([[1] * 9, [1] * 5 + [0] * 4])}


def images() -> dict[str, np.ndarray]:
    return {"pixel_values": np.random.default_rng(2).random((2, 3, 32, 32), dtype=np.float32)}


def reference(cls: Any, folder: Path, inputs: dict[str, np.ndarray]) -> Any:
    model = cls.from_pretrained(folder)
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(array.copy()) for name, array in inputs.items()})


async def served(entry: Staged, inputs: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Outputs on a device's copy, twice with a swap between, which must be the same."""
    assert entry.image is not None
    copies = [Path(shutil.copy(entry.image, entry.image.with_name(f"s{number}"))) for number in (1, 2)]
    async with RunningInstance(entry, entry.image.parent.parent / "run") as instance:
        assert instance.error == ""
        await instance.attach(copies[0])
        first = await instance.infer(inputs)
        await instance.detach()
        copies[0].unlink()
        await instance.attach(copies[1])
        second = await instance.infer(inputs)
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
    return first, instance.lines


async def load_error(entry: Staged) -> str:
    assert entry.image is not None
    async with RunningInstance(entry, entry.image.parent.parent / "run") as instance:
        return instance.error


async def test_resnet(tmp_path: Path) -> None:
    models.write_resnet(tmp_path / "hf", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    got, lines = await served(staged(tmp_path, PIXELS, [("logits", "FP32", [-1, 10])]), images())
    want = reference(transformers.ResNetForImageClassification, tmp_path / "hf", images())
    assert got["logits"].tobytes() == want.logits.numpy().tobytes()
    assert not any("outside of the mapped range" in line for line in lines)


async def test_bert_with_buffers_that_are_not_saved(tmp_path: Path) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    outputs: Tensors = [("last_hidden_state", "FP32", [-1, -1, 32]), ("pooler_output", "FP32", [-1, 32])]
    got, lines = await served(staged(tmp_path, IDS, outputs), texts())
    want = reference(transformers.BertModel, tmp_path / "hf", texts())
    assert got["last_hidden_state"].tobytes() == want.last_hidden_state.numpy().tobytes()
    assert got["pooler_output"].tobytes() == want.pooler_output.numpy().tobytes()
    assert not any("outside of the mapped range" in line for line in lines)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (transformers.BertConfig(**TINY_BERT), "BertForMaskedLM"),
        (
            transformers.LlamaConfig(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=101,
                tie_word_embeddings=True,
            ),
            "LlamaForCausalLM",
        ),
    ],
)  # fmt: skip
async def test_tied_weights(tmp_path: Path, config: Any, name: str) -> None:
    cls = getattr(transformers, name)
    torch.manual_seed(4)
    cls(config).save_pretrained(tmp_path / "hf")
    got, lines = await served(staged(tmp_path, IDS, LOGITS), texts())
    want = reference(cls, tmp_path / "hf", texts())
    assert got["logits"].tobytes() == want.logits.numpy().tobytes()
    assert not any("outside of the mapped range" in line for line in lines)


async def test_outputs_are_cast_to_the_signature(tmp_path: Path) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    got, _ = await served(staged(tmp_path, IDS, [("pooler_output", "FP16", [-1, 32])]), texts())
    want = reference(transformers.BertModel, tmp_path / "hf", texts())
    assert got["pooler_output"].tobytes() == want.pooler_output.half().numpy().tobytes()


async def test_weights_of_another_type_than_the_configuration_says(tmp_path: Path) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    edit(tmp_path, dtype="bfloat16")
    got, lines = await served(staged(tmp_path, IDS, [("pooler_output", "FP32", [-1, 32])]), texts())
    want = reference(transformers.BertModel, tmp_path / "hf", texts())
    assert want.pooler_output.dtype is torch.bfloat16
    assert got["pooler_output"].tobytes() == want.pooler_output.float().numpy().tobytes()
    assert any("outside of the mapped range" in line for line in lines)


def edit(tmp_path: Path, **changes: Any) -> None:
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


async def test_missing_and_unexpected_weights_are_named(tmp_path: Path) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    path = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(path)
    tensors["pooler.other"] = tensors.pop("pooler.dense.bias")
    save_file(tensors, path, metadata={"format": "pt"})
    error = await load_error(staged(tmp_path, IDS, LOGITS))
    assert "missing: pooler.dense.bias" in error
    assert "not in the model: pooler.other" in error


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": 64}, "do not fit BertModel"),
        ({"architectures": ["NoSuchModel"]}, "'NoSuchModel' is not a model of the installed transformers"),
        ({"architectures": ["BertConfig"]}, "'BertConfig' is not a model"),
        ({"attn_implementation": "somebody/kernel"}, "would fetch code from a hub"),
    ],
)
async def test_a_configuration_that_cannot_be_used_is_a_load_error(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    edit(tmp_path, **changes)
    error = await load_error(staged(tmp_path, IDS, LOGITS))
    assert text in error
    assert "\n" not in error


async def test_code_of_the_artefact_is_never_run(tmp_path: Path) -> None:
    models.write_bert(tmp_path / "hf", **TINY_BERT)
    ran = tmp_path / "ran"
    for name in ("modeling_x", "configuration_x"):
        (tmp_path / "hf" / f"{name}.py").write_text(f"open({os.fspath(ran)!r}, 'w')\n")
    edit(tmp_path, auto_map={"AutoModel": "modeling_x.XModel", "AutoConfig": "configuration_x.XConfig"})
    entry = staged(tmp_path, IDS, [("pooler_output", "FP32", [-1, 32])])
    await served(entry, texts())
    assert not ran.exists()


async def test_an_input_that_the_model_does_not_take_is_a_load_error(tmp_path: Path) -> None:
    models.write_resnet(tmp_path / "hf", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    error = await load_error(staged(tmp_path, [("input_ids", "INT64", [-1, -1])], LOGITS))
    assert "takes no input input_ids" in error

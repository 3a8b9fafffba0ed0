"""Programs of torch.export in real instance processes: the same results as natively, the weights in the range."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rouse import exported
from rouse_common.errors import InvalidArgument
from rouse_runtime.handlers.mutation import first_write
from rouse_testkit import models
from rouse_testkit.artefacts import Staged, Tensors, stage
from rouse_testkit.instances import running


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As an instance has it: the order of sums depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def staged(tmp_path: Path) -> Staged:
    """What `rouse deploy` and the mesh make of tmp_path/f/model.pt2."""
    folder = tmp_path / "made"
    folder.mkdir()
    exported.convert(tmp_path / "f" / "model.pt2", folder)
    (tmp_path / "images").mkdir()
    content = json.loads((folder / "program.json").read_text())
    inputs, outputs = (
        [(row["name"], row["datatype"], row["shape"]) for row in content[kind]] for kind in ("inputs", "outputs")
    )
    return stage(folder, tmp_path / "images", name="f", inputs=inputs, outputs=outputs)


async def infer(tmp_path: Path, version: Staged, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    async with running(tmp_path, version) as instance:
        assert instance.error == ""
        if version.image is not None:
            copy = Path(shutil.copy(version.image, tmp_path / "segment"))
            await instance.attach(copy)
            first = await instance.infer(inputs)
            await instance.detach()
            # Elsewhere, as after a swap, and then without anything in it: it is these weights that are used.
            again = Path(shutil.copy(copy, tmp_path / "again"))
            await instance.attach(again, "a2")
            second = await instance.infer(inputs, lease="a2/1")
            assert {k: v.tobytes() for k, v in first.items()} == {k: v.tobytes() for k, v in second.items()}
            again.write_bytes(bytes(version.version.weights_bytes))  # noqa: ASYNC240 - a small file
            nothing = await instance.infer(inputs, lease="a2/2")
            assert any(nothing[name].tobytes() != first[name].tobytes() for name in first)
            return first
        return await instance.infer(inputs)


def names(tensors: Any) -> Tensors:
    return [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in tensors]


async def test_an_mlp(tmp_path: Path) -> None:
    program = models.write_exported_mlp(tmp_path / "f")
    version = staged(tmp_path)
    signature = version.version.spec.signature
    assert names(signature.inputs) == [("input", "FP32", [-1, 16])]
    assert names(signature.outputs) == [("output", "FP32", [-1, 4])]
    assert version.version.weights_bytes >= (16 * 32 + 32 + 32 * 4 + 4) * 4
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    with torch.inference_mode():
        want = program.module()(torch.from_numpy(x)).numpy()
    assert (await infer(tmp_path, version, {"input": x}))["output"].tobytes() == want.tobytes()


class Everything(nn.Module):
    """Convolutions in channels-last, batch norm, tied weights, constants, buffers, nested results, other inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.first.weight
        self.register_buffer("scale", torch.arange(8.0), persistent=False)
        self.shift = torch.ones(8) / 3

    def forward(self, image: torch.Tensor, mask: torch.Tensor, *, factor: int = 2) -> dict[str, Any]:
        features = self.norm(self.conv(image)).relu().mean((2, 3)) * self.scale + self.shift
        with torch.no_grad():
            hidden = self.tied(self.first(features)) * factor
        return {"hidden": hidden, "parts": (hidden[mask.sum() :], hidden.sum(1).to(torch.int64)), "mask": mask}


async def test_results_are_bit_for_bit_those_of_the_program_itself(tmp_path: Path) -> None:
    torch.manual_seed(1)
    rows = torch.export.Dim("rows", min=2, max=16)
    module, image = Everything(), torch.randn(3, 3, 8, 8)
    program = models.write_exported(
        tmp_path / "f", module, image, torch.zeros(3, dtype=torch.int64), kwargs={"factor": 3},
        dynamic_shapes={"image": {0: rows}, "mask": {0: rows}, "factor": None},
    )  # fmt: skip
    version = staged(tmp_path)
    outputs = names(version.version.spec.signature.outputs)
    assert [name for name, _, _ in outputs] == ["hidden", "parts_0", "parts_1", "mask"]
    inputs = {
        "image": np.random.default_rng(2).standard_normal((4, 3, 8, 8)).astype(np.float32),
        "mask": np.array([0, 1, 0, 0]),
    }
    with torch.inference_mode():
        want = program.module()(*(torch.from_numpy(value) for value in inputs.values()), factor=3)
    got = await infer(tmp_path, version, inputs)
    flat = {"hidden": want["hidden"], "parts_0": want["parts"][0], "parts_1": want["parts"][1], "mask": want["mask"]}
    assert {name: value.tobytes() for name, value in got.items()} == {
        name: value.numpy().tobytes() for name, value in flat.items()
    }

    async with running(tmp_path, version) as instance:
        await instance.attach(tmp_path / "segment")
        for wrong, text in (
            ({"mask": inputs["mask"][:3]}, "dimension 0 of 'mask' is 3, and dimension 0 of 'image' is 4"),
            ({"image": inputs["image"][:1], "mask": inputs["mask"][:1]}, "is 1; the program takes 2 to 16"),
        ):
            with pytest.raises(InvalidArgument, match=text):
                await instance.infer(inputs | wrong)
        with pytest.raises(InvalidArgument, match="'mask' is missing"):
            await instance.infer({"image": inputs["image"]})


async def test_a_transformer(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = BertModel(config, add_pooling_layer=False)
    tokens, mask = torch.randint(0, 100, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    program = models.write_exported(tmp_path / "f", model, tokens, mask)
    version = staged(tmp_path)
    assert names(version.version.spec.signature.outputs) == [("last_hidden_state", "FP32", [2, 7, 32])]
    with torch.inference_mode():
        want = program.module()(tokens, mask)["last_hidden_state"].numpy()
    got = await infer(tmp_path, version, {"input_ids": tokens.numpy(), "attention_mask": mask.numpy()})
    assert got["last_hidden_state"].tobytes() == want.tobytes()


class Counting(nn.Module):
    """Writes to a buffer: by itself, through a view, or in a block of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(2, 2))
        self.norm = nn.BatchNorm1d(2)
        self.norm.num_batches_tracked = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "itself":
            self.count.add_(1)
        elif self.how == "view":
            self.count.view(-1)[:2].mul_(2)
        elif self.how == "block":
            with torch.no_grad():
                self.count.t().add_(1)
        elif self.how == "norm":
            return self.norm.train()(x)
        elif self.how == "copy":
            return self.count.clone().add_(x)
        return x + self.count


def writer(module: nn.Module) -> str:
    program = torch.export.export(module, (torch.zeros(2, 2),))
    inputs = program.graph_signature.user_inputs
    bound = [node.name for node in program.graph.nodes if node.op == "placeholder" and node.name not in inputs]
    return first_write(program.graph_module, bound)


@pytest.mark.parametrize(
    ("how", "operator"),
    [
        ("itself", "aten::add_"), ("view", "aten::mul_"), ("block", "aten::add_"),
        ("norm", "aten::batch_norm in training mode"), ("copy", ""), ("none", ""),
    ],
)  # fmt: skip
def test_a_program_that_writes_to_its_buffers_is_found(how: str, operator: str) -> None:
    assert writer(Counting(how)) == operator


async def test_a_program_that_writes_to_its_buffers_is_a_load_error(tmp_path: Path) -> None:
    models.write_exported(tmp_path / "f", Counting("itself"), torch.zeros(2, 2))
    async with running(tmp_path, staged(tmp_path)) as instance:
        assert "writes to its weights or buffers when it runs (aten::add_)" in instance.error


async def test_what_does_not_load_says_why(tmp_path: Path) -> None:
    models.write_exported_mlp(tmp_path / "f")
    version = staged(tmp_path)
    program = version.folder / "program.json"
    good = json.loads(program.read_text())
    for change, text in (
        ({"format": "other"}, "is not of the format"),
        ({"program": {**good["program"], "schema_version": {"major": 99, "minor": 0}}}, "cannot read the program"),
        ({"weights": {**good["weights"], "0.weight": {**good["weights"]["0.weight"], "payload": "x"}}}, "holds no 'x'"),
        ({"weights": {**good["weights"], "0.weight": {**good["weights"]["0.weight"], "offset": 9}}}, "does not lie"),
        ({"inputs": [{**good["inputs"][0], "name": "other"}]}, "the program takes other and gives output"),
    ):
        program.write_text(json.dumps(good | change))
        async with running(tmp_path, version) as instance:
            assert text in instance.error

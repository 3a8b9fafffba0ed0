"""Small real functions and models to deploy in tests."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

Tensors = list[tuple[str, str, list[int]]]


def write_function(
    folder: Path, name: str, code: str, inputs: Tensors, outputs: Tensors, extra: str = "", *, settings: str = ""
) -> Path:
    """A Python function package: `code` defines the class `Function`. To rouse.toml, `settings` is added at the
    top level and `extra` (tables) at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "function.py").write_text(textwrap.dedent(code))
    rows = [f'name = "{name}"', 'handler = "function:Function"', settings]
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        for tensor, datatype, shape in tensors:
            rows += [f"[[{kind}]]", f'name = "{tensor}"', f'datatype = "{datatype}"', f"shape = {shape}"]
    (folder / "rouse.toml").write_text("\n".join([*rows, textwrap.dedent(extra)]) + "\n")
    return folder


IDENTITY = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            return {"y": inputs["x"]}
"""


def write_identity(folder: Path, name: str = "identity", extra: str = "") -> Path:
    """x FP32 [-1] in, the same out as y."""
    return write_function(folder, name, IDENTITY, [("x", "FP32", [-1])], [("y", "FP32", [-1])], extra)


def write_linear(folder: Path, name: str, size: int, seed: int, extra: str = "") -> Path:
    """y = W·x with W FP32 [size, size] drawn from `seed` and bound to device memory: 4·size² bytes of weights."""
    from safetensors.torch import save_file

    write_function(
        folder,
        name,
        f"""
        import torch

        class Function:
            def load(self, context):
                self.layer = torch.nn.Linear({size}, {size}, bias=False, device="meta")
                context.bind(self.layer, "weights.safetensors")

            def predict(self, inputs):
                return {{"y": self.layer(torch.from_numpy(inputs["x"].copy()))}}
        """,
        [("x", "FP32", [-1, size])],
        [("y", "FP32", [-1, size])],
        extra,
    )
    save_file({"weight": linear_weight(size, seed)}, folder / "weights.safetensors")
    return folder


def linear_weight(size: int, seed: int) -> Any:
    """The weight of `write_linear`, a torch tensor FP32 [size, size]."""
    import torch

    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed))


def write_resnet(folder: Path, seed: int = 0, **config: Any) -> Path:
    """A small random ResNet as a Hugging Face directory: pixel_values FP32 [-1, 3, H, W] to logits FP32 [-1, 10]."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "embedding_size": 32,
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
        "num_labels": 10,
    }
    model = ResNetForImageClassification(ResNetConfig(**(settings | config)))
    model.save_pretrained(folder)
    return folder


def write_bert(folder: Path, seed: int = 0, **config: Any) -> Path:
    """A small random BERT as a Hugging Face directory: input_ids and attention_mask INT64 [-1, -1] in."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "vocab_size": 8000,
    }
    BertModel(BertConfig(**(settings | config))).save_pretrained(folder)
    return folder


def write_exported(folder: Path, module: Any, *arguments: Any, **settings: Any) -> Any:
    """model.pt2 of a module, as torch.export.save writes it; the program itself."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    program = torch.export.export(module.eval(), arguments, **settings)
    torch.export.save(program, folder / "model.pt2")
    return program


def write_exported_mlp(folder: Path, seed: int = 0) -> Any:
    """An exported MLP: `input` FP32 [-1, 16] to `output` FP32 [-1, 4]; the program itself."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
    batch = torch.export.Dim("batch", min=1, max=64)
    return write_exported(folder, torch.nn.Sequential(*layers), torch.zeros(2, 16), dynamic_shapes=({0: batch},))

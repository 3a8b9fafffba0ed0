"""A program of torch.export, rebuilt from its graph with its weights as views of the range.

The graph is JSON and the weights are safetensors (rouse.exported makes them out of the archive), so no pickle is
loaded. model-repository has made sure that the graph names nothing but operators.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rouse_contracts.tensors import TensorError
from rouse_runtime.context import shorten
from rouse_runtime.failures import BadResult, LoadError
from rouse_runtime.handlers import Source
from rouse_runtime.handlers.mutation import first_write
from rouse_runtime.request import Request
from rouse_runtime.weights import make_tensors

if TYPE_CHECKING:
    import torch

PROGRAM, WEIGHTS = "program.json", "weights.safetensors"
FORMAT = "rouse.torch_export.1"


def prepare() -> None:
    """Imports what every program needs; called early, while the artefact is still being staged."""
    importlib.import_module("torch.export")
    importlib.import_module("torch._export.serde.serialize")


class ExportedHandler:
    """Calls the program with its inputs by name, and names its results."""

    casts = True
    takes_request = False
    takes_tensors = True
    mixes = True

    def __init__(self, source: Source) -> None:
        prepare()
        import torch

        content = _read(source)
        self._inputs: list[dict[str, Any]] = content["inputs"]
        self._outputs = [str(entry["name"]) for entry in content["outputs"]]
        self._ranges: dict[str, list[int | None]] = content["ranges"]
        _check_names(source, [str(entry["name"]) for entry in self._inputs], self._outputs)
        program = _build(content, source)
        constants = {spec.arg.name: spec.arg.value for spec in program.graph_signature.input_specs
                     if type(spec.arg).__name__ == "ConstantArgument"}  # fmt: skip
        self._order = [
            (spec.arg.name, constants.get(spec.arg.name))
            for spec in program.graph_signature.input_specs
            if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
        ]
        self._dtypes = _dtypes(self._inputs)
        # Without guards: they would be compiled from code of the archive. Sizes are checked here.
        self._module = program.module(check_guards=False)
        self.modules = (self._module,)

    def kept(self) -> Mapping[str, Any]:
        return {}

    def predict(self, inputs: dict[str, Any], request: Request) -> Mapping[str, Any]:
        import torch

        self._check_sizes(inputs)
        given: dict[str, Any] = {}
        for name, array in inputs.items():
            tensor = torch.as_tensor(array)
            given[name] = tensor if tensor.dtype == self._dtypes[name] else tensor.to(self._dtypes[name])
        flat = [given.get(name, constant) for name, constant in self._order]
        results = self._module(*flat)
        if len(results) != len(self._outputs):
            raise BadResult("", f"the program gave {len(results)} results, not {len(self._outputs)}")
        return dict(zip(self._outputs, results, strict=True))

    def _check_sizes(self, inputs: Mapping[str, Any]) -> None:
        """Raises TensorError where an input is missing, or its sizes are not ones that the program was exported for."""
        sizes: dict[str, tuple[str, int]] = {}
        for entry in self._inputs:
            name = entry["name"]
            if name not in inputs:
                raise TensorError(f"the input '{name}' is missing")
            for axis, (symbol, size) in enumerate(zip(entry["symbols"], inputs[name].shape, strict=True)):
                if not symbol:
                    continue
                where = f"dimension {axis} of '{name}'"
                low, high = self._ranges.get(symbol, (None, None))
                if size < (low or 0) or (high is not None and size > high):
                    raise TensorError(f"{where} is {size}; the program takes {low or 0} to {high or 'any'}")
                other, known = sizes.setdefault(symbol, (where, size))
                if known != size:
                    raise TensorError(f"{where} is {size}, and {other} is {known}; the program takes equal ones")


def _read(source: Source) -> dict[str, Any]:
    path = source.folder / PROGRAM
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise LoadError(f"{PROGRAM} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise LoadError(f"{PROGRAM} is not of the format {FORMAT}; deploy model.pt2 with the `rouse` of this mesh")
    return content


def _check_names(source: Source, inputs: list[str], outputs: list[str]) -> None:
    signature = source.version.spec.signature
    unknown = [spec.name for spec in signature.inputs if spec.name not in inputs]
    unknown += [spec.name for spec in signature.outputs if spec.name not in outputs]
    if unknown or len(signature.inputs) != len(inputs) or len(signature.outputs) != len(outputs):
        raise LoadError(
            f"the program takes {', '.join(inputs)} and gives {', '.join(outputs)}; [[inputs]] and [[outputs]] of "
            f"rouse.toml have to name the same{f', not {shorten(unknown)}' if unknown else ''}"
        )


def _dtypes(inputs: list[dict[str, Any]]) -> dict[str, torch.dtype]:
    import torch

    names = {"BOOL": "bool", "BF16": "bfloat16", "FP16": "float16", "FP32": "float32", "FP64": "float64"}
    return {entry["name"]: getattr(torch, names.get(entry["datatype"], entry["datatype"].lower())) for entry in inputs}


def _build(content: Mapping[str, Any], source: Source) -> torch.export.ExportedProgram:
    """Raises LoadError where this PyTorch cannot read the program."""
    import torch
    from torch._export.serde import schema

    serialize: Any = importlib.import_module("torch._export.serde.serialize")
    payloads = make_tensors(source.weights, source.artefact.layout.tensors).get(WEIGHTS, {})

    def view(name: str, entry: Mapping[str, Any]) -> torch.Tensor:
        payload = payloads.get(entry["payload"])
        if payload is None:
            raise LoadError(f"{WEIGHTS} holds no '{entry['payload']}', which '{name}' is in")
        try:
            tensor = payload.as_strided(entry["sizes"], entry["strides"], entry["offset"])
        except RuntimeError as error:
            raise LoadError(f"'{name}' does not lie within '{entry['payload']}': {error}") from error
        return torch.nn.Parameter(tensor, requires_grad=False) if entry["parameter"] else tensor

    state = {name: view(name, entry) for name, entry in content["weights"].items()}
    constants = {name: view(name, entry) for name, entry in content["constants"].items()}
    try:
        program = serialize._dict_to_dataclass(schema.ExportedProgram, {**content["program"], "guards_code": []})
        built: torch.export.ExportedProgram = serialize.ExportedProgramDeserializer().deserialize(
            program, state, constants
        )
    except Exception as error:
        by = content["program"].get("torch_version", "another version")
        raise LoadError(
            f"PyTorch {torch.__version__} cannot read the program, exported by {by} ({type(error).__name__}: {error})"
        ) from error
    inputs = built.graph_signature.user_inputs
    bound = [node.name for node in built.graph.nodes if node.op == "placeholder" and node.name not in inputs]
    if writer := first_write(built.graph_module, bound):
        raise LoadError(
            f"the program writes to its weights or buffers when it runs ({writer}); they are shared and read-only: "
            "export it in evaluation mode, and give what changes as an output"
        )
    return built

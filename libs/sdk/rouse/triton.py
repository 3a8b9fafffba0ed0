"""A model of a Triton or ModelMesh model repository: config.pbtxt and folders of versions, as far as they map.

What does not map and cannot change a result is named, and left out; what could change one is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from rouse.errors import PackageError
from rouse.manifest import Manifest, check_name
from rouse.types import Batching, Scaling, TensorSpec

CONFIG = "config.pbtxt"
MAX_CONFIG_BYTES = 4 << 20
CLASS = "TritonPythonModel"
DEFAULT_FILE = "model.py"
# What a backend's models are called, so that one without a `backend` is known.
BACKENDS = {
    "model.py": "python", "model.pt": "pytorch", "model.onnx": "onnxruntime", "model.plan": "tensorrt",
    "model.graphdef": "tensorflow", "model.savedmodel": "tensorflow",
}  # fmt: skip
# Parts that change what a model is given or gives, and what there is instead.
REFUSED = {
    "ensemble_scheduling": "ensembles are not supported; call one function from another, or join them in one class",
    "sequence_batching": "sequence batching is not supported; predict(self, inputs, request) is told of sequences",
    "batch_input": "additional batch inputs are not supported",
    "batch_output": "additional batch outputs are not supported",
}
MAPPED = {
    "name", "platform", "backend", "runtime", "max_batch_size", "input", "output", "version_policy", "dynamic_batching",
    "model_transaction_policy", "instance_group", "parameters", "default_model_filename",
}  # fmt: skip
DYNAMIC = {"max_queue_delay_microseconds"}
TYPES = {"TYPE_STRING": "BYTES"}
MAX_INSTANCES = 1000


@dataclass(frozen=True)
class TritonModel:
    """What was read.

    Attributes:
        manifest: what a rouse.toml would have said.
        version: the folder of the version to deploy.
        notes: what was left out, each in words.
    """

    manifest: Manifest
    version: str
    notes: tuple[str, ...]


def is_model(root: Path) -> bool:
    """Whether a folder is a model of a model repository."""
    return (root / CONFIG).is_file()


def models_in(root: Path) -> list[str]:
    """The models of a folder that is a whole model repository."""
    return sorted(path.name for path in root.iterdir() if path.is_dir() and is_model(path))


def read(root: Path) -> TritonModel:
    """Reads a model's folder. Raises PackageError BAD_SPEC | BAD_ARTEFACT | BAD_NAME | PICKLE_REFUSED."""
    config = _parse(root)
    notes = _Notes()
    version = _version(root, config, notes)
    batched = config.max_batch_size > 0
    manifest = Manifest(
        name=check_name(config.name) if config.name else "",
        handler=f"{_module(root, config, version)}:{CLASS}",
        inputs=_tensors("input", config.input, batched, notes),
        outputs=_tensors("output", config.output, batched, notes),
        scaling=_scaling(config, notes),
        options={name: value.string_value for name, value in sorted(config.parameters.items())} or None,
        decoupled=config.model_transaction_policy.decoupled,
    )
    manifest = replace(manifest, batching=_batching(config, notes))
    for field, _ in config.ListFields():
        if field.name in REFUSED:
            raise _bad(f"{field.name}: {REFUSED[field.name]}")
        if field.name not in MAPPED:
            notes.add(field.name)
    if "EXECUTION_ENV_PATH" in config.parameters:
        notes.add("parameters.EXECUTION_ENV_PATH", "libraries have to be installed on the nodes")
    return TritonModel(manifest, version, notes.taken())


def kept(paths: Collection[str], version: str) -> set[str]:
    """Paths of the files that belong to a version: its own, and those beside the versions."""
    return {path for path in paths if not path.partition("/")[0].isdigit() or path.startswith(f"{version}/")}


class _Notes:
    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, what: str, why: str = "") -> None:
        self._lines[f"{what} ({why})" if why else what] = None

    def taken(self) -> tuple[str, ...]:
        return tuple(self._lines)


def _parse(root: Path) -> Any:
    from rouse_contracts import inference

    try:
        data = (root / CONFIG).read_bytes()
        if len(data) > MAX_CONFIG_BYTES:
            raise _bad(f"it has {len(data)} bytes; at most {MAX_CONFIG_BYTES}")
        return text_format.Parse(data.decode(), inference.ModelConfig())
    except text_format.ParseError as error:
        raise _bad(f"line {error}") from None
    except UnicodeDecodeError:
        raise _bad("it is not UTF-8") from None
    except OSError as error:
        raise _bad(f"it cannot be read: {error.strerror}") from None


def _version(root: Path, config: Any, notes: _Notes) -> str:
    """The highest version that the policy allows."""
    found = sorted((path.name for path in root.iterdir() if path.is_dir() and path.name.isdigit()), key=int)
    numbers = [name for name in found if name.isascii() and not name.startswith("0")]
    allowed = {str(number) for number in config.version_policy.specific.versions}
    numbers = [name for name in numbers if not allowed or name in allowed]
    if not numbers:
        raise PackageError(
            f"{root} has no version to deploy: want a folder such as {root.name}/1 with the model in it",
            reason="BAD_ARTEFACT",
        )
    for other in found:
        if other != numbers[-1]:
            notes.add(f"version {other}", f"version {numbers[-1]} is deployed")
    return numbers[-1]


def _module(root: Path, config: Any, version: str) -> str:
    """The Python module that holds the model's class."""
    backend = config.backend or config.platform.removesuffix("_libtorch").removesuffix("_plan").partition("_")[0]
    present = {path.name for path in (root / version).iterdir()}
    if not backend:
        backend = next((known for name, known in BACKENDS.items() if name in present), "unknown")
    if backend == "pytorch":
        raise PackageError(
            f"{root}: models of the pytorch backend are TorchScript, which holds pickles that can run any code when "
            "they are loaded; save the model with torch.export as model.pt2, and deploy a folder with that",
            reason="PICKLE_REFUSED",
        )
    if backend != "python":
        raise _bad(f"the backend '{backend}' is not supported; python is, and torch.export without a config.pbtxt")
    file = config.default_model_filename or DEFAULT_FILE
    module, dot, ending = file.rpartition(".")
    if not dot or ending != "py" or not module.isidentifier():
        raise _bad(f"default_model_filename is '{file}'; want a Python module, as model.py")
    if file not in present:
        raise PackageError(f"{root / version} has no {file}", reason="BAD_ARTEFACT")
    return module


def _tensors(kind: str, entries: Any, batched: bool, notes: _Notes) -> tuple[TensorSpec, ...]:
    from rouse_contracts import inference

    specs = []
    for entry in entries:
        name = inference.DataType.Name(entry.data_type)
        if not entry.name or name == "TYPE_INVALID" or not entry.dims:
            raise _bad(f"each {kind} needs a name, a data_type and dims; '{entry.name}' lacks one")
        if entry.HasField("reshape"):
            raise _bad(f"{kind} '{entry.name}': reshape is not supported; reshape in the model")
        if kind == "input" and entry.allow_ragged_batch:
            raise _bad(f"{kind} '{entry.name}': allow_ragged_batch is not supported")
        for field, _ in entry.ListFields():
            if field.name == "optional":
                notes.add(f"{kind}.optional", "every input has to be given")
            elif field.name not in ("name", "data_type", "dims"):
                notes.add(f"{kind}.{field.name}")
        shape = (-1, *entry.dims) if batched else tuple(entry.dims)
        specs.append(TensorSpec(entry.name, TYPES.get(name, name.removeprefix("TYPE_")), shape))
    if not specs:
        raise _bad(f"it names no {kind}; auto-completed configurations are not supported, write them out")
    return tuple(specs)


def _batching(config: Any, notes: _Notes) -> Batching | None:
    size, dynamic = config.max_batch_size, config.HasField("dynamic_batching")
    if dynamic:
        for field, _ in config.dynamic_batching.ListFields():
            if field.name not in DYNAMIC:
                notes.add(f"dynamic_batching.{field.name}")
    if dynamic and config.model_transaction_policy.decoupled:
        notes.add("dynamic_batching", "a decoupled function takes one request at a time")
        return None
    if not dynamic or size < 2:
        if size > 0:
            notes.add("max_batch_size", "without dynamic_batching the rows of a request are not limited")
        return None
    return Batching(size, config.dynamic_batching.max_queue_delay_microseconds)


def _scaling(config: Any, notes: _Notes) -> Scaling | None:
    if not config.instance_group:
        return None
    for group in config.instance_group:
        for field, _ in group.ListFields():
            if field.name != "count":
                notes.add(f"instance_group.{field.name}", "the mesh chooses the device")
    count = sum(max(1, group.count) for group in config.instance_group)
    if count > MAX_INSTANCES:
        raise _bad(f"instance_group asks for {count} instances; at most {MAX_INSTANCES}")
    return Scaling(max_instances=count)


def _bad(message: str) -> PackageError:
    return PackageError(f"{CONFIG}: {message}", reason="BAD_SPEC", metadata={"path": CONFIG})

"""A Hugging Face directory: config.json names a transformers class, whose weights are views of the range.

The model is built by transformers' own loader, so that renamed keys, tied weights and buffers that are not saved
come out as they do everywhere; it is given tensors over the range instead of files, and copies none of them.
Code of the artefact is never run: the class is looked up in the installed transformers only.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rouse_contracts.tensors import TensorError
from rouse_runtime.context import shorten
from rouse_runtime.failures import BadResult, LoadError
from rouse_runtime.handlers import HOST_DEVICE, Source
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsRange, make_tensors

if TYPE_CHECKING:
    import torch

LOG = logging.getLogger(__name__)

# Set before transformers is imported: nothing is fetched, and loading needs no threads of its own.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# Kernels named as "owner/name" would be fetched from a hub.
ATTENTION_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")


def prepare() -> None:
    """Imports what every model needs; called early, while the artefact is still being staged."""
    os.environ.update(ENVIRONMENT)
    importlib.import_module("transformers.modeling_utils")
    transformers_logging: Any = importlib.import_module("transformers.utils.logging")
    transformers_logging.disable_progress_bar()
    # Its report of missing keys is an error here, in our own words.
    transformers_logging.set_verbosity_error()


class HuggingFaceHandler:
    """Runs `forward` with the declared inputs, and takes the declared outputs from its result."""

    casts = True
    takes_request = False
    takes_tensors = True
    # transformers keeps to the device of its inputs and weights.
    mixes = False

    def __init__(self, source: Source) -> None:
        prepare()
        config = read_config(source)
        cls = find_class(config, source.artefact.architecture)
        self._outputs = [spec.name for spec in source.version.spec.signature.outputs]
        self._model = build(cls, config, source)
        self.modules = (self._model,)
        self._inputs = _inputs(self._model)
        declared = [spec.name for spec in source.version.spec.signature.inputs]
        unknown = [name for name in declared if name not in self._inputs] if self._inputs else []
        if unknown:
            raise LoadError(
                f"{cls.__name__} takes no input {shorten(unknown)}; declare [[inputs]] in rouse.toml out of "
                f"{', '.join(sorted(self._inputs))}"
            )

    def kept(self) -> Mapping[str, Any]:
        return {}

    def predict(self, inputs: dict[str, Any], request: Request) -> Mapping[str, Any]:
        import torch

        given = {}
        for name, array in inputs.items():
            if array.dtype == object:
                raise TensorError(f"tensor '{name}' is BYTES, which a Hugging Face model cannot take")
            tensor = torch.as_tensor(array, device=self._model.device)
            given[name] = tensor.to(self._model.dtype) if tensor.is_floating_point() else tensor
        result = self._model(**given)
        names = self._outputs or [name for name in result if isinstance(result[name], torch.Tensor)]
        return {name: self._output(result, name) for name in names}

    def _output(self, result: Any, name: str) -> torch.Tensor:
        import torch

        value = result[name] if isinstance(result, Mapping) and name in result else getattr(result, name, None)
        if not isinstance(value, torch.Tensor):
            raise BadResult(
                name, f"{type(self._model).__name__} gives no tensor '{name}'; it gives {', '.join(result.keys())}"
            )
        return value


def _inputs(model: Any) -> set[str]:
    """Names that the model's `forward` spells out; none where it takes anything."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(model.forward).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind not in kinds}


def read_config(source: Source) -> dict[str, Any]:
    """config.json, without what would have code or kernels fetched. Raises LoadError."""
    path = source.folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise LoadError(f"config.json cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise LoadError("config.json does not hold an object")
    for key in ATTENTION_KEYS:
        if "/" in str(config.get(key, "")):
            raise LoadError(f"config.json: {key} = {config[key]!r} would fetch code from a hub, which is not done")
    config.pop("auto_map", None)
    return config


def find_class(config: Mapping[str, Any], architecture: str) -> Any:
    """The model class of the installed transformers. Raises LoadError naming it."""
    import transformers

    name = architecture or next(iter(config.get("architectures") or []), "")
    if not name:
        raise LoadError("config.json names no class under 'architectures'")
    try:
        cls = getattr(transformers, name, None)
    except (ImportError, RuntimeError) as error:
        raise LoadError(f"architecture '{name}' cannot be imported: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise LoadError(
            f"architecture '{name}' is not a model of the installed transformers {transformers.__version__}; "
            "write a Python function for models with code of their own"
        )
    return cls


def build(cls: Any, raw_config: Mapping[str, Any], source: Source) -> Any:
    """The model with its weights in the range, in evaluation mode. Raises LoadError."""
    config = cls.config_class.from_dict(dict(raw_config))
    if getattr(config, "use_cache", None):
        config.use_cache = False  # each request stands for itself
    tensors: dict[str, torch.Tensor] = {}
    for named in make_tensors(source.weights, source.artefact.layout.tensors).values():
        tensors.update(named)
    if not tensors:
        raise LoadError("the folder holds no weights: there is no tensor in any *.safetensors file")
    try:
        model, report = cls.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=_dtype(raw_config),
            output_loading_info=True,
            local_files_only=True,
        )
    except RuntimeError as error:
        raise LoadError(f"the weights do not fit {cls.__name__}: {error}") from error
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise LoadError(
            f"the weights do not fit {cls.__name__}: "
            f"missing: {shorten(sorted(report['missing_keys']))}; "
            f"not in the model: {shorten(sorted(report['unexpected_keys']))}; "
            f"of another shape: {shorten(sorted(str(key) for key in report['mismatched_keys']))}"
        )
    model.requires_grad_(False)
    model.to(HOST_DEVICE)
    _report_outside(model, tensors, source.weights)
    return model


def _dtype(raw_config: Mapping[str, Any]) -> str:
    """As transformers does it: what config.json says, else what the weights are."""
    return str(raw_config.get("dtype") or raw_config.get("torch_dtype") or "auto").removeprefix("torch.")


def _report_outside(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], weights: WeightsRange) -> None:
    """Puts parameters that the loader copied without changing them back onto the range, and logs what stays out.

    transformers copies a tied bias when it pads it by nothing, and converts weights whose type differs from the
    configuration's; what is converted lives in this process and is neither swapped nor counted on a device.
    """
    import torch

    outside = 0
    state = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if value.numel() == 0 or weights.holds(value.data_ptr()):
            continue
        own = tensors.get(name)
        if own is not None and own.dtype == value.dtype and torch.equal(own, value):
            value.data = own
        else:
            outside += value.numel() * value.element_size()
    if outside:
        LOG.warning("weights outside of the mapped range outside_mib=%.1f of_model_mib=%.1f reason=converted on load",
                    outside / 2**20, weights.image_bytes / 2**20)  # fmt: skip

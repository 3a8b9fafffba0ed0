"""A class of the user's own: `load(self, context)` once, `predict(self, inputs)` or `(self, inputs, request)` then."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rouse_runtime.context import Context
from rouse_runtime.failures import LoadError
from rouse_runtime.handlers import HOST_DEVICE, Source
from rouse_runtime.handlers.awaiting import Awaited
from rouse_runtime.request import Request

SIZED = (list, dict, set)
TRITON_CONFIG = "config.pbtxt"


class PythonHandler:
    """Imports `module:Class` from the artefact's folder and calls its `load`."""

    casts = False
    mixes = True
    takes_tensors = False

    def __init__(self, source: Source) -> None:
        spec = source.version.spec
        code = _triton_folder(source)
        cls = self._class = import_class(spec.handler, code or source.folder)
        try:
            self._function: Any = cls()
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise LoadError(f"{spec.handler} cannot be made without arguments: {error}") from error
            raise
        if code is not None:
            from rouse_runtime.triton.model import TritonModel

            self._function = TritonModel(self._function, source.version, source.folder, code)
        if not callable(getattr(self._function, "predict", None)):
            raise LoadError(f"{spec.handler} has no method predict(self, inputs)")
        context = Context(
            source.folder, spec.options, HOST_DEVICE, source.weights, list(source.artefact.layout.tensors)
        )
        load = getattr(self._function, "load", None)
        if load is not None:
            load(context)
        context.close()
        self.modules = context.modules
        self._is_triton = code is not None
        self._predict, self.takes_request = adapt(self._function.predict, spec.decoupled)

    def predict(self, inputs: dict[str, np.ndarray], request: Request) -> Mapping[str, Any] | Iterator[Any]:
        result: Mapping[str, Any] | Iterator[Any] = self._predict(inputs, request)
        return result

    def kept(self) -> Mapping[str, Any]:
        # A process's first request finds its module as every other process's did: two of them are no proof that nothing
        # there changes from request to request.
        held = dict(getattr(self._function, "__dict__", {}))
        module = sys.modules.get(self._class.__module__)
        for where in (module, self._class) if module is not None else (self._class,):
            # Python's own, as the registry of warnings, are no state of the function.
            held |= {f"{where.__name__}.{n}": value for n, value in vars(where).items() if not n.startswith("__")}
        return {name: (value, len(value) if isinstance(value, SIZED) else 0) for name, value in held.items()}

    def close(self) -> None:
        """The function is not called any more."""
        if self._is_triton:
            self._function.close()


def _triton_folder(source: Source) -> Path | None:
    """Where a Triton model's code is; it can import Triton's module then. None for any other function."""
    if not (source.folder / TRITON_CONFIG).is_file():
        return None
    from rouse_runtime.triton.model import install, version_folder

    code = version_folder(source.folder, source.version.spec.handler)
    if code is not None:
        install()
    return code


def adapt(predict: Callable[..., Any], decoupled: bool) -> tuple[Callable[[Any, Request], Any], bool]:
    """A user's `predict` as one that is called with inputs and request, and whether it takes the request.

    Raises LoadError where it is a generator and the function is not decoupled.
    """
    if not decoupled and (inspect.isgeneratorfunction(predict) or inspect.isasyncgenfunction(predict)):
        raise LoadError(
            "predict() is a generator, and the function is not decoupled; say decoupled = true in rouse.toml, "
            "or return one dict"
        )
    wants = takes_request(predict)
    if inspect.iscoroutinefunction(predict) or inspect.isasyncgenfunction(predict):
        predict = Awaited(predict)
    return (predict if wants else lambda inputs, request: predict(inputs)), wants


def takes_request(predict: Callable[..., Any]) -> bool:
    """Whether `predict` has a second parameter to be given: any that needs a value, or one named `request`."""
    try:
        parameters = list(inspect.signature(predict).parameters.values())
    except ValueError:  # of code without a signature, as in C
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is positional[1].empty or positional[1].name == "request")


def import_class(handler: str, folder: Path) -> type:
    """The class that "module:Class" names, imported from the artefact's folder.

    The folder comes first on sys.path and becomes the working directory; nothing is written there.
    Raises LoadError, or whatever importing the user's module raises.
    """
    module_name, separator, class_name = handler.partition(":")
    if not separator or not module_name or not class_name:
        raise LoadError(f"handler = '{handler}': want module:Class, as model:Classifier")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    importlib.invalidate_caches()
    if module_name.partition(".")[0] in sys.modules:
        raise LoadError(f"handler = '{handler}': '{module_name}' is the name of a library's module; rename the file")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise LoadError(f"handler = '{handler}': the function's folder has no module '{module_name}'") from error
        raise
    if not Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
        raise LoadError(
            f"handler = '{handler}': '{module_name}' was found outside of the function's folder; "
            "is the file missing, or is its name that of an installed package?"
        )
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        raise LoadError(f"handler = '{handler}': module '{module_name}' has no class '{class_name}'")
    return cls

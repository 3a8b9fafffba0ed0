"""A class of Triton's Python backend: initialize(args) once, execute(requests) per request."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format, text_format

from rouse_contracts import inference
from rouse_contracts.functions import FunctionVersion
from rouse_runtime.failures import BadResult, LoadError
from rouse_runtime.request import Request
from rouse_runtime.triton import utils
from rouse_runtime.triton.utils import InferenceRequest, InferenceResponse, TritonModelException

CONFIG, CLASS, MODULE = "config.pbtxt", "TritonPythonModel", "triton_python_backend_utils"
# Responses of a decoupled model that wait to be taken; past these, `send` waits.
AHEAD = 1
LOOK_AGAIN_S = 0.05


def version_folder(folder: Path, handler: str) -> Path | None:
    """Where a Triton model's code is in an artefact; None where it is another kind of function."""
    if not handler.endswith(f":{CLASS}") or not (folder / CONFIG).is_file():
        return None
    versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    return max(versions, key=lambda path: int(path.name), default=None)


def install() -> None:
    """Lets models import triton_python_backend_utils; to be called before theirs is."""
    sys.modules[MODULE] = utils


class TritonModel:
    """A model as one with `predict(inputs, request)`."""

    def __init__(self, model: Any, version: FunctionVersion, folder: Path, code: Path) -> None:
        if not callable(getattr(model, "execute", None)):
            raise LoadError(f"{CLASS} has no method execute(self, requests)")
        self._model, self._decoupled = model, version.spec.decoupled
        self._outputs = [spec.name for spec in version.spec.signature.outputs]
        initialize = getattr(model, "initialize", None)
        if initialize is not None:
            initialize(_arguments(version, folder, code))

    def close(self) -> None:
        """The model's own `finalize`."""
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            finalize()

    def predict(self, inputs: dict[str, np.ndarray], request: Request) -> Any:
        if self._decoupled:
            return self._stream(inputs, request)
        responses = self._model.execute([InferenceRequest(inputs, self._outputs, request, _no_sender)])
        if not isinstance(responses, list) or len(responses) != 1:
            raise BadResult("", "execute() returned no list of one InferenceResponse for one request")
        return _result(responses[0])

    def _stream(self, inputs: dict[str, np.ndarray], request: Request) -> Iterator[dict[str, np.ndarray]]:
        """Runs `execute` in a thread of its own, since it sends its responses instead of returning them."""
        sender = Sender(request)
        made = InferenceRequest(inputs, self._outputs, request, lambda: sender)

        def execute() -> None:
            try:
                returned = self._model.execute([made])
            except BaseException as error:  # noqa: BLE001 - it is raised where responses are taken
                with contextlib.suppress(TritonModelException):  # nobody takes them any more
                    sender.fail(error)
            else:
                for response in returned or ():
                    sender.send(response, utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        thread = threading.Thread(target=execute, name="execute", daemon=True)
        thread.start()
        try:
            while (response := sender.take()) is not None:
                yield _result(response)
        finally:
            sender.close()
            while thread.is_alive():
                thread.join(LOOK_AGAIN_S)


class Sender:
    """The response sender of one request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._waiting: queue.Queue[InferenceResponse | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._closed = self._final = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, or only the flag that the last one was sent. Waits while the reader is behind.

        Raises TritonModelException after the last one, and where nobody reads any more.
        """
        if self._final:
            raise TritonModelException("the response sender has sent its final response already")
        self._final = bool(flags & utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if response is not None:
            self._put(response)
        if self._final:
            self._put(None)

    def is_cancelled(self) -> bool:
        return self._closed or self._request.cancelled

    def fail(self, error: BaseException) -> None:
        """What `execute` raised. Raises TritonModelException where nobody reads any more."""
        self._put(error)

    def take(self) -> InferenceResponse | None:
        """The next response, None after the last one. Raises what `execute` raised."""
        while True:
            try:
                found = self._waiting.get(timeout=LOOK_AGAIN_S)
            except queue.Empty:
                continue  # in short steps, so that it can be interrupted
            if isinstance(found, BaseException):
                raise found
            return found

    def close(self) -> None:
        self._closed = True

    def _put(self, entry: InferenceResponse | BaseException | None) -> None:
        while not self.is_cancelled():
            try:
                return self._waiting.put(entry, timeout=LOOK_AGAIN_S)
            except queue.Full:
                continue
        raise TritonModelException("the request was cancelled")


def _no_sender() -> Any:
    raise TritonModelException("the model is not decoupled; it returns its responses")


def _result(response: Any) -> dict[str, np.ndarray]:
    if not isinstance(response, InferenceResponse):
        raise BadResult("", f"execute() gave {type(response).__name__}, want an InferenceResponse")
    error = response.error()
    if error is not None:
        raise TritonModelException(error.message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _arguments(version: FunctionVersion, folder: Path, code: Path) -> dict[str, str]:
    """What `initialize` is told; all of it text, as Triton has it."""
    config = text_format.Parse((folder / CONFIG).read_text(), inference.ModelConfig())
    config.name = version.spec.name
    for name, value in version.spec.options.items():
        config.parameters[name].string_value = value
    told = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for tensor in (*told.get("input", ()), *told.get("output", ())):
        tensor["dims"] = [int(size) for size in tensor["dims"]]  # JSON has 64-bit numbers as texts
    return {
        "model_config": json.dumps(told),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        "model_instance_name": f"{version.spec.name}_0",
        "model_repository": str(folder),
        "model_version": code.name,
        "model_name": version.spec.name,
    }

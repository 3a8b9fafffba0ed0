"""The process that `rouse dev` runs a function in: the mesh's own inspection and runtime, without a mesh."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rouse
from rouse.convert import tensors as tensor_specs
from rouse.deploying import Overrides, spec_of
from rouse.tensors import encode_all
from rouse_contracts import arrays, coordination, device, functions
from rouse_contracts.repository import Artefact

HEADER, DEADLINE = struct.Struct("<cI"), struct.Struct("<d")
MAX_FRAME_BYTES = 1 << 30
INSPECT_TIMEOUT_S = 300.0
STOP_S = 5.0


class Ended(Exception):
    """The process ended by itself; the text says how."""


@dataclass(frozen=True)
class Answer:
    """One response. The last one has the times, in milliseconds; of a decoupled function it has nothing else."""

    outputs: Mapping[str, np.ndarray]
    device_ms: float
    input_ms: float
    output_ms: float


class DevFunction:
    """A package in a process of its own.

    Args:
        work: a folder for what is made of the package; kept between reloads, so that weights are laid out once.
    """

    def __init__(self, package: rouse.Package, overrides: Overrides, work: Path) -> None:
        for module in ("rouse_runtime", "rouse_model_repository"):
            if importlib.util.find_spec(module) is None:
                raise rouse.FailedPrecondition(
                    "the mesh itself is not installed here, only its client", reason="MESH_NOT_INSTALLED"
                )
        self.spec = spec_of(package, overrides)
        folder = _staged(package, work / "function")
        artefact = _inspected(folder)
        if not self.spec.signature.inputs:
            self.spec.signature.inputs.extend(artefact.signature.inputs)
        if not self.spec.signature.outputs:
            self.spec.signature.outputs.extend(artefact.signature.outputs)
        self.inputs = tensor_specs(self.spec.signature.inputs)
        self.outputs = tensor_specs(self.spec.signature.outputs)
        version = functions.FunctionVersion(
            version_id="dev", version=1, spec=self.spec, format=artefact.format,
            weights_bytes=artefact.layout.image_bytes,
        )  # fmt: skip
        assignment = coordination.GetAssignmentResponse(
            version=version, artefact=artefact, artefact_path=str(folder), environment=dict(self.spec.environment)
        )
        if artefact.layout.image_bytes:
            assignment.image_path = str(_image(package, artefact, work))
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rouse_runtime.dev", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()], start_new_session=True,
                env=os.environ | {"ROUSE_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self._control = ours
        self._send(b"A", assignment.SerializeToString())

    def loaded(self, timeout_s: float) -> tuple[str, float]:
        """Why it did not load, empty where it did; and the milliseconds that loading took. Raises Ended."""
        self._control.settimeout(timeout_s)
        try:
            _, data = self._receive()
        except TimeoutError:
            return f"it did not load within {timeout_s:g} s", timeout_s * 1000
        report = json.loads(data)
        return report["error"], report["load_ms"]

    def call(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any], timeout_s: float) -> Iterator[Answer]:
        """One request's responses as they come. Raises RouseError; Ended where the process does."""
        specs = {spec.name: spec for spec in self.inputs}
        batch = functions.TensorBatch(tensors=encode_all(inputs, specs))
        options = functions.RequestOptions()
        for name, value in parameters.items():
            options.parameters[name].CopyFrom(_parameter(value))
        request = device.ExecuteRequest(request_id="dev", inputs=batch.SerializeToString(), options=options)
        if self.spec.batching.max_batch_size > 1 and batch.tensors and batch.tensors[0].shape:
            request.rows = batch.tensors[0].shape[0]
        self._send(b"Q", DEADLINE.pack(timeout_s) + request.SerializeToString())
        ends = time.monotonic() + timeout_s
        while True:
            self._control.settimeout(max(0.01, ends - time.monotonic()))
            try:
                kind, data = self._receive()
            except TimeoutError:
                self._stop()
                raise rouse.DeadlineExceeded(f"it did not answer within {timeout_s:g} s and was stopped") from None
            if kind == b"E":
                raise _error(json.loads(data))
            if kind == b"D":
                return
            response = device.ExecuteResponse.FromString(data)
            given = arrays.from_batch(functions.TensorBatch.FromString(response.outputs))
            yield Answer(given, response.device_ms, response.input_ms, response.output_ms)

    def _stop(self) -> None:
        """Stops the request; what it still sent is dropped."""
        self._send(b"C", b"")
        self._control.settimeout(STOP_S)
        with contextlib.suppress(TimeoutError):  # the next request says that this one still runs
            while self._receive()[0] != b"S":
                continue

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S)

    def _send(self, kind: bytes, payload: bytes) -> None:
        try:
            self._control.settimeout(None)
            self._control.sendall(HEADER.pack(kind, len(payload)) + payload)
        except OSError:
            raise Ended(self._how()) from None

    def _receive(self) -> tuple[bytes, bytes]:
        kind, length = HEADER.unpack(self._read(HEADER.size))
        if length > MAX_FRAME_BYTES:
            raise Ended(f"it sent {length} bytes at once")
        return kind, self._read(length)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self._control.recv(min(1 << 20, count - len(data)))
            except TimeoutError:
                raise
            except OSError:
                chunk = b""
            if not chunk:
                raise Ended(self._how())
            data += chunk
        return bytes(data)

    def _how(self) -> str:
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        return (
            f"its process died of {signal.Signals(-code).name}" if code < 0 else f"its process ended with code {code}"
        )


def _staged(package: rouse.Package, folder: Path) -> Path:
    """The package's files as the mesh would lay them out, by links."""
    shutil.rmtree(folder, ignore_errors=True)
    for file in package.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(file.source.resolve())
    return folder


def _inspected(folder: Path) -> Artefact:
    """Raises PackageError as a deployment would."""
    done = subprocess.run(
        [sys.executable, "-m", "rouse_model_repository.local", str(folder)],
        capture_output=True, timeout=INSPECT_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode == 0:
        return Artefact.FromString(done.stdout)
    last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    try:
        told = json.loads(last)
    except ValueError:
        raise rouse.Internal(f"the folder cannot be inspected: {last}") from None
    raise rouse.PackageError(told["message"], reason=told["reason"], metadata=told["metadata"])


def _image(package: rouse.Package, artefact: Artefact, work: Path) -> Path:
    """Where the weights are laid out: elsewhere once their files change."""
    weights = {tensor.file for tensor in artefact.layout.tensors}
    state = [(f.path, f.source.stat().st_mtime_ns, f.size_bytes) for f in package.files if f.path in weights]
    image = work / f"image-{abs(hash(tuple(state))):x}"
    for old in work.glob("image-*"):
        if old != image:
            old.unlink()
    return image


def _parameter(value: Any) -> functions.Parameter:
    if isinstance(value, bool):
        return functions.Parameter(bool_value=value)
    if isinstance(value, int):
        return functions.Parameter(int64_value=value)
    return (
        functions.Parameter(double_value=value) if isinstance(value, float) else functions.Parameter(string_value=value)
    )


def _error(told: dict[str, Any]) -> rouse.RouseError:
    kinds = {"BAD_TENSOR": rouse.InvalidArgument, "UNKNOWN_OUTPUT": rouse.InvalidArgument}
    kind: type[rouse.RouseError] = kinds.get(told["reason"], rouse.Internal)
    return kind(told["message"], reason=told["reason"], metadata=told["metadata"])

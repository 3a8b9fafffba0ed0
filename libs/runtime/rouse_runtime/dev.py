"""`python -m rouse_runtime.dev DESCRIPTOR`: one function, called over a socket by whoever started it (`rouse dev`).

Messages are frames: a letter, a length in four bytes, little-endian, and so many bytes. In comes first the assignment
(A, rouse.coordination.v1.GetAssignmentResponse), then requests (Q, rouse.device.v1.ExecuteRequest, its deadline in
seconds before it as eight bytes of a float). Out go L (JSON: error and load_ms), then for each request any number
of R (ExecuteResponse) and at the end D, or E (JSON: reason, message, metadata). C stops a request, and S says so.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from rouse_common.errors import RouseError
from rouse_common.lifecycle import die_with_parent
from rouse_contracts import device
from rouse_contracts.coordination import GetAssignmentResponse
from rouse_runtime.executor import Attachment, Executor
from rouse_runtime.loading import Loaded, load
from rouse_runtime.watchdog import Watchdog
from rouse_runtime.worker import Worker

HEADER = struct.Struct("<cI")
DEADLINE = struct.Struct("<d")
MAX_FRAME_BYTES = 1 << 30
COPY_BYTES = 16 << 20
DEVICE, LEASE = "cpu", "dev/1"
_Send = Callable[[bytes, bytes], Awaitable[None]]
# A function that does not return is ended here, not by the watchdog: whoever started us reads what it prints.
HANG_GRACE_S = 30.0


def main(descriptor: int) -> int:
    die_with_parent(signal.SIGKILL)
    faulthandler.enable(file=2)
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
    for ours in ("rouse_runtime", "rouse_common", "asyncio", "opentelemetry"):
        logging.getLogger(ours).setLevel(logging.ERROR)
    for traced in ("rouse_runtime.loading", "rouse_runtime.running"):
        logging.getLogger(traced).setLevel(logging.WARNING)  # the user's own tracebacks
    with socket.socket(fileno=descriptor) as control:
        code = asyncio.run(serve(control))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def serve(control: socket.socket) -> int:
    """Loads what the first frame says, and answers until the socket is closed."""
    reader, writer = await asyncio.open_connection(sock=control)

    async def send(kind: bytes, payload: bytes) -> None:
        writer.write(HEADER.pack(kind, len(payload)) + payload)
        await writer.drain()

    _, data = await receive(reader)
    assignment = GetAssignmentResponse.FromString(data)
    started = time.perf_counter()
    worker = Worker("function")
    loaded = await worker.run(_prepare, assignment)
    load_ms = (time.perf_counter() - started) * 1000
    failed = loaded if isinstance(loaded, str) else ""
    await send(b"L", json.dumps({"error": failed, "load_ms": load_ms}).encode())
    if isinstance(loaded, str):
        return 1
    executor = Executor(
        assignment.version, assignment.artefact_path, "dev", loaded.handler, loaded.weights, worker, Watchdog(),
        HANG_GRACE_S, _flush,
    )  # fmt: skip
    threads = assignment.version.spec.resources.threads
    attachment = Attachment(LEASE.partition("/")[0], assignment.image_path, DEVICE, threads)
    await executor.attach(attachment, loaded.weights.image_bytes)
    running: asyncio.Task[None] | None = None
    while True:
        try:
            kind, data = await receive(reader)
        except asyncio.IncompleteReadError:
            return 0
        if running is not None:
            running.cancel()  # it has ended, unless this is to stop it
            await asyncio.wait([running])
            running = None
        if kind == b"C":
            await send(b"S", b"")
        else:
            running = asyncio.create_task(_answer(executor, data, send))


async def receive(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """One frame. Raises IncompleteReadError at the end, ValueError for one that is too large."""
    kind, length = HEADER.unpack(await reader.readexactly(HEADER.size))
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES}")
    return kind, await reader.readexactly(length)


async def _answer(executor: Executor, data: bytes, send: _Send) -> None:
    (left_s,) = DEADLINE.unpack_from(data)
    request = device.ExecuteRequest.FromString(data[DEADLINE.size :])
    options = request.options if request.HasField("options") else None
    try:
        async with aclosing(
            executor.execute(
                LEASE, request.request_id, request.inputs, list(request.output_names), left_s, options, request.rows
            )
        ) as results:
            async for result in results:
                response = device.ExecuteResponse(
                    outputs=result.outputs, device_ms=result.device_ms, input_ms=result.input_ms,
                    output_ms=result.output_ms,
                )  # fmt: skip
                await send(b"R", response.SerializeToString())
        await send(b"D", b"")
    except RouseError as error:
        told = {"reason": error.reason, "message": error.message, "metadata": error.metadata}
        await send(b"E", json.dumps(told).encode())


def _prepare(assignment: GetAssignmentResponse) -> Loaded | str:
    try:
        if assignment.artefact.layout.image_bytes and not os.path.exists(assignment.image_path):
            make_image(assignment)
        return load(assignment, 0)
    finally:
        _flush()


def make_image(assignment: GetAssignmentResponse) -> None:
    """Lays the weights out in a file as a node does in its host memory."""
    folder, made = Path(assignment.artefact_path), Path(assignment.image_path + ".new")
    with made.open("wb") as image:
        image.truncate(assignment.artefact.layout.image_bytes)
        for tensor in assignment.artefact.layout.tensors:
            with (folder / tensor.file).open("rb") as source:
                source.seek(tensor.file_offset_bytes)
                image.seek(tensor.image_offset_bytes)
                left = tensor.size_bytes
                while left and (chunk := source.read(min(COPY_BYTES, left))):
                    left -= image.write(chunk)
    made.rename(assignment.image_path)


def _flush() -> None:
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

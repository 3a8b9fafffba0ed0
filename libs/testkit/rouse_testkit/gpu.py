"""In-process doubles of what gpu-server speaks with: executors that really map, a repository, a coordinator.

All are real gRPC servers. An executor double maps the segment that it is given, reads from it what it answers,
and owns a process, so that its end can be seen; it can be told to hang, to refuse, or to die.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from rouse_common.errors import FailedPrecondition, Internal, NotFound, RouseError
from rouse_common.link import Incoming
from rouse_common.rpc import remaining_s
from rouse_contracts import coordination, device, repository
from rouse_contracts.functions import ArtefactFile, FunctionSpec, FunctionVersion, Resources
from rouse_contracts.links import EXECUTE, executor_link
from rouse_testkit.links import Linked
from rouse_testkit.served import Served

CHUNK_BYTES = 1 << 20
ALIGNMENT_BYTES = 64
# Stands before the first tensor in its file, as a safetensors header does.
HEADER_BYTES = 72
WEIGHTS = "weights/model.safetensors"


@dataclass(frozen=True)
class MadeModel:
    """A version with its artefact, its blobs by digest, and the image that a device must hold."""

    version: FunctionVersion
    artefact: repository.Artefact
    blobs: dict[str, bytes]
    image: bytes


def make_model(name: str, tensor_bytes: list[int], *, working_bytes: int = 0, version_id: str = "") -> MadeModel:
    """A model whose tensors hold bytes drawn from its name; no tensors make a function without weights."""
    draw = random.Random(name)
    data, image, tensors = bytearray(draw.randbytes(HEADER_BYTES)), bytearray(), []
    for index, size in enumerate(tensor_bytes):
        image.extend(bytes(-len(image) % ALIGNMENT_BYTES))
        content = draw.randbytes(size)
        tensors.append(
            repository.WeightTensor(
                name=f"t{index}",
                file=WEIGHTS,
                dtype="U8",
                shape=[size],
                file_offset_bytes=len(data),
                image_offset_bytes=len(image),
                size_bytes=size,
            )
        )
        data.extend(content)
        image.extend(content)
    files = {"config.json": f'{{"name": "{name}"}}'.encode()}
    if tensor_bytes:
        files[WEIGHTS] = bytes(data)
    blobs = {hashlib.sha256(content).hexdigest(): content for content in files.values()}
    listed = [
        ArtefactFile(path=path, digest=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        for path, content in files.items()
    ]
    artefact = repository.Artefact(
        digest=hashlib.sha256(" ".join(f.digest for f in listed).encode()).hexdigest(),
        files=listed,
        size_bytes=sum(f.size_bytes for f in listed),
        layout=repository.WeightsLayout(tensors=tensors, image_bytes=len(image)),
    )
    version = FunctionVersion(
        version_id=version_id or f"{name}-v1",
        version=1,
        spec=FunctionSpec(name=name, resources=Resources(working_memory_bytes=working_bytes)),
        artefact_digest=artefact.digest,
        weights_bytes=len(image),
        artefact_bytes=artefact.size_bytes,
    )
    return MadeModel(version, artefact, blobs, bytes(image))


class MappingExecutor(Served, device.ExecutorServiceServicer):
    """An executor of one model. Execute answers the mapped bytes.

    Attributes:
        mapped: its mapping of the attached segment; None while detached or without weights.
        attachment: the present Attach; None while detached.
        hold: Execute waits while this is not set.
        hang_detach: Detach waits for ever, as a process does that is stuck.
        attach_error, detach_error: raised by the next calls while set.
        calls: how often each method was called.
    """

    def __init__(self, folder: Path, instance_id: str, model: MadeModel) -> None:
        super().__init__(
            device.add_ExecutorServiceServicer_to_server, device.DESCRIPTOR,
            address=f"unix:{folder / f'{instance_id}.sock'}",
        )  # fmt: skip
        self.instance_id, self.model = instance_id, model
        self.mapped: mmap.mmap | None = None
        self.attachment: device.AttachRequest | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.hang_detach = False
        self.attach_error: RouseError | None = None
        self.detach_error: RouseError | None = None
        self.calls: Counter[str] = Counter()
        self.active = 0
        self._idle = asyncio.Condition()
        self._link = Linked(executor_link(self.address))
        self._link.add(EXECUTE, device.ExecuteRequest, self._execute)
        self._process = subprocess.Popen(["sleep", "600"])
        self.message = device.Executor(
            instance_id=instance_id, version=model.version, address=self.address, pid=self._process.pid
        )

    async def start(self) -> str:
        await super().start()
        await self._link.start()
        return self.address

    async def die(self) -> None:
        """The process ends: its connections break, its mappings are gone."""
        self._process.kill()
        self._process.wait()
        await self._link.kill()
        await self.stop()
        self._unmap()

    async def close(self) -> None:
        await self.die()

    def _unmap(self) -> None:
        if self.mapped is not None:
            self.mapped.close()
        self.mapped = self.attachment = None

    async def Attach(self, request: device.AttachRequest, context: grpc.aio.ServicerContext) -> device.AttachResponse:
        self.calls["Attach"] += 1
        if self.attach_error is not None:
            raise self.attach_error
        if self.attachment is not None:
            raise FailedPrecondition("ALREADY_ATTACHED", f"{self.instance_id} is attached")
        if request.size_bytes != self.model.artefact.layout.image_bytes:
            raise FailedPrecondition("SIZE_MISMATCH", f"{request.size_bytes} B are not the model's")
        if request.size_bytes:
            handle = os.open(request.segment_path, os.O_RDONLY)
            self.mapped = mmap.mmap(handle, request.size_bytes, prot=mmap.PROT_READ)
            os.close(handle)
        self.attachment = request
        return device.AttachResponse()

    async def Detach(self, request: device.DetachRequest, context: grpc.aio.ServicerContext) -> device.DetachResponse:
        self.calls["Detach"] += 1
        if self.detach_error is not None:
            raise self.detach_error
        left_s = remaining_s(context, 60.0) - 0.05
        try:
            async with asyncio.timeout(left_s), self._idle:
                await self._idle.wait_for(lambda: not self.active and not self.hang_detach)
        except TimeoutError:
            raise Internal("EXECUTOR_BUSY", f"{self.instance_id} is still busy") from None
        self._unmap()
        return device.DetachResponse()

    async def _execute(self, request: device.ExecuteRequest, call: Incoming) -> device.ExecuteResponse:
        self.calls["Execute"] += 1
        if self.attachment is None or not request.lease_id.startswith(f"{self.attachment.lease_id}/"):
            raise FailedPrecondition("STALE_LEASE", "not a lease of the present attachment")
        assert not self.active, "two requests execute at once on one executor"
        self.active += 1
        try:
            # Like user code, it runs to its end when the caller goes away.
            await asyncio.shield(self.hold.wait())
            return device.ExecuteResponse(outputs=self.mapped[:] if self.mapped is not None else b"", device_ms=1.0)
        finally:
            if self.hold.is_set():
                await self._finished()
            else:
                self._tail = asyncio.create_task(self._finish_later())

    async def _finish_later(self) -> None:
        await self.hold.wait()
        await self._finished()

    async def _finished(self) -> None:
        async with self._idle:
            self.active -= 1
            self._idle.notify_all()

    async def unhang(self) -> None:
        """What hung goes on."""
        async with self._idle:
            self.hang_detach = False
            self._idle.notify_all()


class RepositoryDouble(Served, repository.RepositoryServiceServicer):
    """A model-repository that holds what it was given.

    Attributes:
        served: calls by method and digest.
        gate: GetBlob waits before its first chunk while this is not set.
        break_after: the next GetBlob breaks off as a lost connection does after so many chunks.
        failures: errors raised instead of an answer, by digest.
    """

    def __init__(self, *models: MadeModel) -> None:
        super().__init__(repository.add_RepositoryServiceServicer_to_server, repository.DESCRIPTOR)
        self.artefacts = {m.artefact.digest: m.artefact for m in models}
        self.blobs = {digest: content for m in models for digest, content in m.blobs.items()}
        self.served: Counter[tuple[str, str]] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()
        self.break_after: int | None = None
        self.failures: dict[str, RouseError] = {}
        self.offsets: list[int] = []

    def add(self, *models: MadeModel) -> None:
        for model in models:
            self.artefacts[model.artefact.digest] = model.artefact
            self.blobs.update(model.blobs)

    async def GetArtefact(
        self, request: repository.GetArtefactRequest, context: grpc.aio.ServicerContext
    ) -> repository.GetArtefactResponse:
        self.served["GetArtefact", request.digest] += 1
        if request.digest in self.failures:
            raise self.failures[request.digest]
        if request.digest not in self.artefacts:
            raise NotFound("ARTEFACT_NOT_FOUND", f"there is no artefact {request.digest}")
        return repository.GetArtefactResponse(artefact=self.artefacts[request.digest])

    async def GetBlob(
        self, request: repository.GetBlobRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[repository.GetBlobResponse]:
        self.served["GetBlob", request.digest] += 1
        self.offsets.append(request.offset_bytes)
        if request.digest in self.failures:
            raise self.failures[request.digest]
        await self.gate.wait()
        content = self.blobs[request.digest]
        chunks = range(request.offset_bytes, len(content), CHUNK_BYTES)
        for number, start in enumerate(chunks):
            if self.break_after is not None and number >= self.break_after:
                self.break_after = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection lost")
            yield repository.GetBlobResponse(chunk=content[start : start + CHUNK_BYTES])


@dataclass
class EndedInstance:
    """What the coordinator was asked to end."""

    instance_id: str
    reason: str


class CoordinatorDouble(Served, coordination.CoordinationServiceServicer):
    """A coordinator that ends executors when it is told to.

    Attributes:
        executors: what it can end, by instance id.
        ended: what it was asked to end.
        failure: raised instead while set.
    """

    def __init__(self) -> None:
        super().__init__(coordination.add_CoordinationServiceServicer_to_server, coordination.DESCRIPTOR)
        self.executors: dict[str, MappingExecutor] = {}
        self.ended: list[EndedInstance] = []
        self.failure: RouseError | None = None

    async def StopInstance(
        self, request: coordination.StopInstanceRequest, context: grpc.aio.ServicerContext
    ) -> coordination.StopInstanceResponse:
        assert request.grace_ms == 0
        self.ended.append(EndedInstance(request.instance_id, request.reason))
        if self.failure is not None:
            raise self.failure
        executor = self.executors.pop(request.instance_id, None)
        if executor is not None:
            await executor.die()
        return coordination.StopInstanceResponse()

"""A client of model-repository for tests, over real gRPC."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_common.errors import from_rpc_error
from rouse_contracts import functions, repository

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 60.0


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def safetensors(tensors: Mapping[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of name: (dtype, shape, bytes)."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(data for _, _, data in tensors.values())


async def until_health(channel: grpc.aio.Channel, serving: bool, timeout_s: float = TIMEOUT_S) -> None:
    """Returns once the server's health is as wanted."""
    wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    request = health_pb2.HealthCheckRequest()
    watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=timeout_s)
    try:
        async for answer in watch:
            if answer.status == wanted:
                return
    finally:
        watch.cancel()
    raise AssertionError("the server ended its health stream")


class RepositoryClient:
    """Every method raises the RouseError that the service answered."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address)
        self.stub = repository.RepositoryServiceStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()

    async def send(self, parts: AsyncIterator[repository.PutBlobRequest]) -> int:
        """An upload as it comes."""
        try:
            answer: repository.PutBlobResponse = await self.stub.PutBlob(parts, timeout=TIMEOUT_S)
            return answer.received_bytes
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def put(self, data: bytes, *, digest: str = "", size: int = -1, chunk: int = CHUNK_BYTES) -> int:
        """An upload, with a header that may lie."""

        async def parts() -> AsyncIterator[repository.PutBlobRequest]:
            yield header(digest or sha256(data), len(data) if size < 0 else size)
            for start in range(0, len(data), chunk):
                yield repository.PutBlobRequest(chunk=data[start : start + chunk])

        return await self.send(parts())

    async def get(self, digest: str, offset: int = 0) -> bytes:
        request = repository.GetBlobRequest(digest=digest, offset_bytes=offset)
        try:
            return b"".join([part.chunk async for part in self.stub.GetBlob(request, timeout=TIMEOUT_S)])
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def missing(self, digests: Iterable[str]) -> list[str]:
        request = repository.FindMissingBlobsRequest(digests=digests)
        return list((await self._call(self.stub.FindMissingBlobs, request)).missing_digests)

    async def commit(self, files: Mapping[str, bytes]) -> repository.Artefact:
        """Commits files by their content, which is not uploaded."""
        return await self.commit_files(
            [functions.ArtefactFile(path=p, digest=sha256(d), size_bytes=len(d)) for p, d in files.items()]
        )

    async def commit_files(self, files: Iterable[functions.ArtefactFile]) -> repository.Artefact:
        answer = await self._call(self.stub.CommitArtefact, repository.CommitArtefactRequest(files=files))
        artefact: repository.Artefact = answer.artefact
        return artefact

    async def deploy(self, files: Mapping[str, bytes]) -> repository.Artefact:
        """As the SDK does it: asks what is missing, uploads that, commits."""
        missing = set(await self.missing([sha256(data) for data in files.values()]))
        for data in {sha256(data): data for data in files.values() if sha256(data) in missing}.values():
            await self.put(data)
        return await self.commit(files)

    async def artefact(self, digest: str) -> repository.Artefact:
        answer = await self._call(self.stub.GetArtefact, repository.GetArtefactRequest(digest=digest))
        artefact: repository.Artefact = answer.artefact
        return artefact

    async def delete(self, digest: str) -> int:
        request = repository.DeleteArtefactRequest(digest=digest)
        freed: int = (await self._call(self.stub.DeleteArtefact, request)).freed_bytes
        return freed

    async def list(self) -> repository.ListArtefactsResponse:
        answer: repository.ListArtefactsResponse = await self._call(
            self.stub.ListArtefacts, repository.ListArtefactsRequest()
        )
        return answer

    async def put_state(self, state: repository.State, data: bytes | None) -> repository.State:
        """Uploads the bytes of a state, unless there are none to upload, and records it."""
        if data is not None:
            await self.put(data)
        answer = await self._call(self.stub.PutState, repository.PutStateRequest(state=state))
        kept: repository.State = answer.state
        return kept

    async def states(self, artefact: str, **made_with: Any) -> Sequence[repository.State]:
        """What of an artefact holds for these fields of MadeWith."""
        request = repository.ListStatesRequest(artefact_digest=artefact, made_with=repository.MadeWith(**made_with))
        return tuple((await self._call(self.stub.ListStates, request)).states)

    async def delete_states(self, artefact: str, **made_with: Any) -> int:
        request = repository.DeleteStatesRequest(artefact_digest=artefact, made_with=repository.MadeWith(**made_with))
        freed: int = (await self._call(self.stub.DeleteStates, request)).freed_bytes
        return freed

    async def _call(self, method: Any, request: Any) -> Any:
        try:
            return await method(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


def header(digest: str, size: int) -> repository.PutBlobRequest:
    return repository.PutBlobRequest(header=repository.PutBlobRequest.Header(digest=digest, size_bytes=size))


# ---- Small artefacts -----------------------------------------------------------------------------

WEIGHTS = safetensors({"a": ("F32", [3], bytes(12)), "b": ("U8", [5], b"hello")})
CONFIG = json.dumps(
    {"architectures": ["ResNetForImageClassification"], "model_type": "resnet", "num_channels": 3,
     "id2label": {str(n): f"label {n}" for n in range(10)}}
).encode()  # fmt: skip
MANIFEST = b"""
name = "f"
handler = "main:F"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1]
"""
PACKAGE = {"rouse.toml": MANIFEST, "main.py": b"class F: pass\n", "pkg/__init__.py": b""}
MODEL = {"config.json": CONFIG, "model.safetensors": WEIGHTS}

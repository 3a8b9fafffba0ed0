"""From a folder to a version that serves: hash, upload what is missing, deploy, wake, give it the traffic."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rouse import convert
from rouse.errors import DeadlineExceeded, FailedPrecondition, PackageError, Unavailable
from rouse.manifest import check_name
from rouse.package import Package, PackageFile, hash_files
from rouse.transport import Transport
from rouse.types import Deployment, Objective, Progress, Resources, Scaling
from rouse_contracts import functions as contract

CHUNK_BYTES = 1 << 20
PARALLEL_UPLOADS = 4
# A file may leave the mesh between the question what is missing and the deployment: then once more.
ATTEMPTS = 2
# Calls that may be repeated without harm, where the mesh is away for a moment or an answer is lost.
REPEATS = 3
PAUSE_S = 0.5


@dataclass(frozen=True)
class Overrides:
    """What the caller says instead of rouse.toml; None leaves what stands there. Options are merged."""

    name: str | None = None
    options: Mapping[str, str] | None = None
    scaling: Scaling | None = None
    resources: Resources | None = None
    objective: Objective | None = None
    description: str | None = None


@dataclass(frozen=True)
class Steps:
    """What a deployment does once the files are there.

    Args:
        wake: the version is woken before it gets traffic.
        traffic: it gets all of it.
        force: it is made also where nothing changed.
    """

    wake: bool = True
    traffic: bool = True
    force: bool = False


class Deploy:
    """One deployment. Every step takes what remains of `timeout_s`."""

    def __init__(
        self,
        transport: Transport,
        package: Package,
        overrides: Overrides,
        timeout_s: float,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._transport = transport
        self._package = package
        self._spec = spec_of(package, overrides)
        self._ends = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._report = _Report(progress)
        self._abandoned = threading.Event()
        self._deployment_id = uuid.uuid4().hex

    async def run(self, steps: Steps) -> Deployment:
        """Raises RouseError; LOAD_FAILED where the new version does not load: it gets no traffic then."""
        files = self._package.files
        started = time.monotonic()
        self._report.begin("hash", self._package.size_bytes)
        digests = await self._transport.work(lambda: hash_files(files, self._report.advance))
        hashed = time.monotonic()
        request = self._request(digests, steps)
        answer, uploaded = await self._upload_and_deploy(dict(zip(digests, files, strict=True)), request)
        version, deployed = answer.version, time.monotonic()
        woken = deployed
        if steps.wake:
            await self._wake(version.version)
            woken = time.monotonic()
        if steps.wake and steps.traffic:
            self._report.begin("traffic")
            share = contract.TrafficShare(version=version.version, percent=100)
            change = contract.SetTrafficRequest(name=self._spec.name, shares=[share])
            await self._repeated("SetTraffic", change, "give the version its traffic")
        self._report.begin("done")
        return Deployment(
            function=self._spec.name,
            version=convert.version(version),
            state="READY" if steps.wake else "DEPLOYED",
            files=len(files),
            total_bytes=self._package.size_bytes,
            uploaded_bytes=uploaded,
            hash_ms=(hashed - started) * 1000,
            upload_ms=(deployed - hashed) * 1000,
            wake_ms=(woken - deployed) * 1000,
            unchanged=answer.unchanged,
        )

    def _request(self, digests: list[str], steps: Steps) -> contract.DeployFunctionRequest:
        request = contract.DeployFunctionRequest(
            spec=self._spec,
            # What is woken first gets its traffic afterwards.
            without_traffic=steps.wake or not steps.traffic,
            deployment_id=self._deployment_id,
            only_if_changed=not steps.force,
        )
        for file, digest in zip(self._package.files, digests, strict=True):
            request.files.add(path=file.path, digest=digest, size_bytes=file.size_bytes)
        return request

    async def _wake(self, version: int) -> None:
        self._report.begin("wake")
        request = contract.WakeFunctionRequest(name=self._spec.name, version=str(version))
        try:
            await self._repeated("WakeFunction", request, "load the function")
        except FailedPrecondition as error:
            if error.reason == "LOAD_FAILED" and version > 1:
                error.message += f"; version {version} got no traffic, what served before goes on serving"
            error.metadata.setdefault("version", str(version))
            raise

    async def _repeated(self, method: str, request: Any, what: str) -> Any:
        """A call that may be repeated: it is, where the mesh is away for a moment."""
        for attempt in range(1, REPEATS + 1):
            try:
                return await self._transport.unary(method, request, self._remaining(what))
            except Unavailable as error:
                if attempt == REPEATS:
                    raise
                await self._transport.sleep(error.retry_after_s or PAUSE_S)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _upload_and_deploy(
        self, blobs: dict[str, PackageFile], request: contract.DeployFunctionRequest
    ) -> tuple[contract.DeployFunctionResponse, int]:
        for attempt in range(1, ATTEMPTS + 1):
            uploaded = await self._upload_missing(blobs)
            self._report.begin("deploy")
            try:
                response = await self._repeated("DeployFunction", request, "deploy")
            except FailedPrecondition as error:
                if error.reason != "BLOB_MISSING" or attempt == ATTEMPTS:
                    raise
            else:
                return response, uploaded
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _upload_missing(self, blobs: dict[str, PackageFile]) -> int:
        """Uploads what the mesh lacks; returns the bytes sent."""
        question = contract.FindMissingBlobsRequest(digests=list(blobs))
        answer = await self._transport.unary("FindMissingBlobs", question, self._remaining("find missing files"))
        missing = [digest for digest in answer.missing_digests if digest in blobs]
        total = sum(blobs[digest].size_bytes for digest in missing)
        self._report.begin("upload", total)

        def job(digest: str) -> Callable[[], Any]:
            return lambda: self._upload(digest, blobs[digest])

        try:
            await self._transport.together([job(digest) for digest in missing], PARALLEL_UPLOADS)
        except BaseException:
            self._abandoned.set()
            raise
        return total

    async def _upload(self, digest: str, file: PackageFile) -> None:
        failures: list[OSError] = []
        chunks = self._chunks(digest, file, failures)
        try:
            await self._transport.upload("UploadBlob", chunks, self._remaining(f"upload {file.path}"))
        except BaseException:
            # Others that are at it stop as well, rather than sending gigabytes for nothing.
            self._abandoned.set()
            if failures:
                raise PackageError(
                    f"{file.source} cannot be read: {failures[0].strerror}", reason="BAD_ARTEFACT"
                ) from None
            raise

    def _chunks(self, digest: str, file: PackageFile, failures: list[OSError]) -> Iterator[contract.UploadBlobRequest]:
        header = contract.UploadBlobRequest.Header(digest=digest, size_bytes=file.size_bytes)
        yield contract.UploadBlobRequest(header=header)
        left = file.size_bytes
        try:
            with file.source.open("rb", buffering=0) as stream:
                while left and (chunk := stream.read(min(CHUNK_BYTES, left))):
                    if self._abandoned.is_set():
                        return
                    left -= len(chunk)
                    yield contract.UploadBlobRequest(chunk=chunk)
                    self._report.advance(len(chunk))
        except OSError as error:
            # gRPC reads this in a thread of its own: the error is raised by whoever waits for the call.
            failures.append(error)

    def _remaining(self, what: str) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"deploying '{self._spec.name}' took more than {self._timeout_s:g} s; no time is left to {what}",
                metadata={"function": self._spec.name},
            )
        return left


class _Report:
    """Counts bytes from several threads and tells the callback, one call at a time."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._state = Progress("hash")

    def begin(self, stage: str, total_bytes: int = 0) -> None:
        with self._lock:
            self._tell(Progress(stage, 0, total_bytes))

    def advance(self, count: int) -> None:
        with self._lock:
            self._tell(Progress(self._state.stage, self._state.done_bytes + count, self._state.total_bytes))

    def _tell(self, state: Progress) -> None:
        self._state = state
        if self._progress is not None:
            self._progress(state)


def spec_of(package: Package, overrides: Overrides) -> contract.FunctionSpec:
    """What a package, and the caller where it says otherwise, say of a function. Raises PackageError BAD_NAME."""
    manifest = package.manifest
    name = overrides.name or package.default_name
    return convert.spec_message(
        check_name(name),
        handler=manifest.handler,
        options={**(manifest.options or {}), **(overrides.options or {})},
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        scaling=overrides.scaling or manifest.scaling,
        resources=overrides.resources or manifest.resources,
        objective=overrides.objective or manifest.objective,
        queue_capacity=manifest.queue_capacity,
        description=manifest.description if overrides.description is None else overrides.description,
        batching=manifest.batching,
        limits=manifest.limits,
        decoupled=manifest.decoupled,
        pinned=manifest.pinned,
        shared=manifest.shared,
        environment=manifest.environment,
        secrets=manifest.secrets,
        execution=manifest.execution,
        isolation=manifest.isolation,
        tapes=manifest.tapes,
    )

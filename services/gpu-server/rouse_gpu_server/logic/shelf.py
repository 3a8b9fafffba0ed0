"""Materialised states on the node: brought beside their artefact, and given to model-repository for other nodes.

What holds here is decided by the node's PyTorch, the device type, the layout of the weights and where the model's
addresses begin (rouse_contracts.states). Without states a function runs as well, only slower at first, so whatever goes
wrong here is logged and nothing fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rouse_common.errors import RouseError
from rouse_contracts import specs, tapes
from rouse_contracts import states as rules
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.repository import MadeWith, State, StateKind
from rouse_gpu_server import metrics
from rouse_gpu_server.adapters import shelf_records
from rouse_gpu_server.adapters.disk import Disk
from rouse_gpu_server.adapters.repository import Repository
from rouse_gpu_server.logic.stager import Stager
from rouse_gpu_server.logic.work import in_thread
from rouse_gpu_server.state.records import Artefact

LOG = logging.getLogger(__name__)
UPLOAD_LIMIT_S = 60.0


def torch_version() -> str:
    """PyTorch's version on this node, told without importing it; empty where there is none."""
    try:
        return rules.torch_version(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Held:
    """A state that is on this node, and its file."""

    state: State
    path: Path


class Shelf:
    """The states of the artefacts of this node.

    Args:
        device_type: of the node's devices, "host" or "cuda".
        torch: version of PyTorch that executors and instances use.
        versions: the versions of an artefact that tapes may answer.
    """

    def __init__(
        self,
        repository: Repository,
        disk: Disk,
        stager: Stager,
        threads: ThreadPoolExecutor,
        device_type: str,
        torch: str,
        versions: Callable[[Artefact], Iterable[FunctionVersion]],
    ) -> None:
        self._repository, self._disk, self._stager, self._threads = repository, disk, stager, threads
        self._device_type, self._torch, self._versions = device_type, torch, versions
        # One record at a time: what is written last is what there is.
        self._writing = asyncio.Lock()

    def made_with(self, version: FunctionVersion, artefact: Artefact) -> MadeWith:
        """What a state of this version that is made here depends on."""
        assert artefact.message is not None
        return MadeWith(
            torch_version=self._torch,
            device_type=self._device_type,
            layout_digest=rules.layout_digest(artefact.message.layout),
            program_digest=rules.program_digest(version.spec),
            base=version.addresses.base,
        )

    def _of_any_program(self, version: FunctionVersion, artefact: Artefact) -> MadeWith:
        """The same for all versions of an artefact, which share a folder."""
        made = self.made_with(version, artefact)
        made.ClearField("program_digest")
        return made

    async def refresh(self, version: FunctionVersion, artefact: Artefact) -> None:
        """Brings the states that hold here to the node; what does not any more goes. Never fails."""
        if not specs.is_redirected(version.spec) or not version.HasField("addresses") or artefact.message is None:
            return
        artefact.pins += 1
        try:
            found = await self._repository.list_states(artefact.digest, self._of_any_program(version, artefact))
            shelf_records.check_states(artefact.digest, found)
            await self._place(artefact, found)
        except (RouseError, OSError) as error:
            metrics.STATES_FAILED.labels("fetch").inc()
            LOG.warning("no states artefact=%s reason=%s", artefact.digest, error)
        finally:
            artefact.pins -= 1

    async def _place(self, artefact: Artefact, states: Sequence[State]) -> None:
        sizes = {state.digest: state.size_bytes for state in states}
        names = {rules.file_name(state): state.digest for state in states}
        fetched = await self._stager.bring(
            artefact.digest, sizes, lambda: self._disk.place_states(artefact.digest, names, self._stager.wanted)
        )
        if not artefact.on_disk:  # dropped meanwhile, with the states it had then
            place = self._disk.place_states
            await in_thread(self._threads, threading.Event(), lambda: place(artefact.digest, {}, self._stager.wanted))
            return
        artefact.states = tuple(states)
        await self.keep(artefact)
        if fetched:
            LOG.info("states fetched artefact=%s count=%d size_bytes=%d", artefact.digest, len(states), fetched)

    # ---- over restarts ----

    async def keep(self, artefact: Artefact) -> None:
        """Writes down what of an artefact's states is here and for which versions. Never fails: without it those are
        known again when an instance of theirs is started."""
        async with self._writing:
            states, versions = artefact.states, list(self._versions(artefact))
            path = self._disk.record(artefact.digest)

            def write() -> None:
                # Dropped meanwhile: nothing of it is to be left.
                if states and versions and artefact.on_disk:
                    shelf_records.write(path, artefact.digest, states, versions)
                else:
                    path.unlink(missing_ok=True)

            try:
                await in_thread(self._threads, threading.Event(), write)
                if not artefact.on_disk:
                    await in_thread(self._threads, threading.Event(), write)
            except (RouseError, OSError) as error:
                metrics.STATES_FAILED.labels("keep").inc()
                LOG.warning("not written down artefact=%s reason=%s", artefact.digest, error)

    async def recover(self, artefacts: Iterable[Artefact]) -> list[FunctionVersion]:
        """Finds the states of artefacts that an earlier life left on disk, and checks them; the versions that they
        hold for. Never fails: what does not hold is said, and removed."""
        found = []
        for artefact in artefacts:
            if not artefact.on_disk:
                continue
            try:
                found += await self._recover(artefact)
            except (RouseError, OSError) as error:
                metrics.STATES_FAILED.labels("recover").inc()
                LOG.warning("states not recovered artefact=%s reason=%s", artefact.digest, error)
        if found:
            LOG.info("recovered versions=%d that tapes answer", len(found))
        return found

    async def _recover(self, artefact: Artefact) -> list[FunctionVersion]:
        digest, nothing = artefact.digest, threading.Event()
        path, folder = self._disk.record(digest), self._disk.states(digest)
        try:
            record = await in_thread(self._threads, nothing, lambda: shelf_records.read(path, digest))
        except RouseError:
            await in_thread(self._threads, nothing, lambda: path.unlink(missing_ok=True))
            raise
        if record is None:
            return []

        wanted = [self._of_any_program(version, artefact) for version in record.versions]

        def checked() -> list[State]:
            states = []
            for state in record.states:
                if not any(rules.matches(state.made_with, made) for made in wanted):
                    continue
                try:
                    shelf_records.check_file(state, folder / rules.file_name(state))
                    states.append(state)
                except RouseError as error:
                    LOG.warning("state not recovered artefact=%s reason=%s", digest, error)
            names = {rules.file_name(state): state.digest for state in states}
            self._disk.place_states(digest, names, self._stager.wanted)
            return states

        artefact.states = tuple(await in_thread(self._threads, nothing, checked))
        return [version for version in record.versions if self.tapes(version, artefact)]

    async def candidates(self, version: FunctionVersion, artefact: Artefact) -> Path:
        """The version's own folder, where its executors keep what requests did until a second one does the same; made
        if absent."""
        return await in_thread(
            self._threads, threading.Event(), lambda: self._disk.candidates(artefact.digest, version.version_id)
        )

    async def dropped(self, version: FunctionVersion, artefact: Artefact) -> None:
        """A version is no longer here, and others of its artefact are."""
        await in_thread(
            self._threads, threading.Event(), lambda: self._disk.remove_candidates(artefact.digest, version.version_id)
        )
        await self.keep(artefact)

    def path(self, artefact: Artefact) -> Path | None:
        """The folder of an artefact's states; None where it has none here."""
        return self._disk.states(artefact.digest) if artefact.states else None

    def of(self, version: FunctionVersion, artefact: Artefact) -> list[Held]:
        """The states on this node that hold for a version."""
        wanted, folder = self.made_with(version, artefact), self._disk.states(artefact.digest)
        return [
            Held(state, folder / rules.file_name(state))
            for state in artefact.states
            if rules.matches(state.made_with, wanted)
        ]

    def tapes(self, version: FunctionVersion, artefact: Artefact) -> list[tuple[str, tapes.Answers, Path]]:
        """The tapes on this node that hold for a version: name, what each answers, and its file."""
        if artefact.message is None or not artefact.states:
            return []
        found = []
        for held in self.of(version, artefact):
            answers = tapes.parse(held.state.name) if held.state.kind == StateKind.STATE_KIND_TAPE else None
            if answers is not None:
                found.append((held.state.name, answers, held.path))
        return found

    def tape_count(self, version: FunctionVersion, artefact: Artefact) -> int:
        """How many tapes of a version are on this node. For often: it goes by the program, all else was looked at when
        they came."""
        if not artefact.states:
            return 0
        program = rules.program_digest(version.spec)
        return sum(
            state.kind == StateKind.STATE_KIND_TAPE and state.made_with.program_digest == program
            for state in artefact.states
        )

    async def publish(
        self, version: FunctionVersion, artefact: Artefact, kind: StateKind, name: str, path: Path
    ) -> State:
        """Keeps a file that was made here as a state of a version, for this node and for all others.

        Raises what PutState documents, ResourceExhausted DISK_FULL, OSError where the file cannot be read.
        """
        nothing = threading.Event()
        digest, size = await in_thread(self._threads, nothing, lambda: _measure(path))
        state = State(
            artefact_digest=artefact.digest, kind=kind, name=name, digest=digest, size_bytes=size,
            made_with=self.made_with(version, artefact),
        )  # fmt: skip
        kept = await self._repository.put_state(state, path, UPLOAD_LIMIT_S)
        await in_thread(self._threads, nothing, lambda: self._disk.adopt(path, digest))
        identity = rules.identity(kept)
        artefact.pins += 1
        try:
            await self._place(artefact, [*(s for s in artefact.states if rules.identity(s) != identity), kept])
        finally:
            artefact.pins -= 1
        return kept


def _measure(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size

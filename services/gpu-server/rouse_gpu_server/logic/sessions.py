"""Sessions of redirected functions: which instance computes through which device's native executor.

A version is mapped in an executor as long as it is on the device, and that is the device's one copy of its weights: the
executor fills it from the host image. Isolated versions, and all on CUDA, have an executor of their own on each device
where they are mapped.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rouse_common.errors import RouseError, Unavailable, Unimplemented
from rouse_common.locks import KeyedLocks
from rouse_contracts import core, specs
from rouse_contracts import states as rules
from rouse_contracts.device import TapeAccess
from rouse_contracts.functions import FunctionSpec
from rouse_gpu_server.adapters import processes
from rouse_gpu_server.adapters.cores import SOCKETS, Core
from rouse_gpu_server.logic.shelf import Shelf
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.records import Executor, Lease, Model, Resident

LOG = logging.getLogger(__name__)
# Socket paths have 107 bytes at most: names of versions and instances are shortened to so many hex digits.
SHORT = 16
# Tapes that an attachment waits for, and an eviction; an executor takes milliseconds for each.
AT_ONCE = 8


@dataclass(frozen=True)
class _Session:
    """An instance's session: where it is, and of which version; `own`: in an executor of the version's own."""

    device: str
    version_id: str
    own: bool = False


class Own(Protocol):
    """Executors of isolated versions: see rouse_gpu_server.adapters.cores."""

    def start(self, device: str, version_id: str) -> Core: ...

    async def end(self, device: str, version_id: str) -> None: ...

    async def forget(self, version_id: str) -> None: ...


@dataclass
class _Mapping:
    """A version as an executor has it.

    Args:
        attachment_id: what leases have to begin with that it executes.
        tapes: those loaded there, by name; None where it was refused, with what they answer (rouse_contracts.tapes).
    """

    attachment_id: str
    tapes: dict[str, str | None] = field(default_factory=dict)

    @property
    def keys(self) -> set[str]:
        """What requests have in common that are answered."""
        return {key for key in self.tapes.values() if key is not None}


class Sessions:
    """Args:
    memory: folder for the sessions' sockets.
    shelf: the tapes of the node.
    """

    def __init__(self, memory: Path, shelf: Shelf, background: Background) -> None:
        self._folder, self._shelf, self._background = memory / SOCKETS, shelf, background
        self._cores: Mapping[str, Core] = {}
        self._devices: Collection[str] = ()
        self._own: Own
        # Executors of single versions.
        self._owned: dict[_Session, Core] = {}
        self._open: dict[str, _Session] = {}
        # Those that leases were granted for last come last.
        self._mappings: dict[_Session, _Mapping] = {}
        # What executors may have mapped, also where nobody heard that they have.
        self._touched: set[_Session] = set()
        # One at a time a version and device: mapping and unmapping must not meet.
        self._locks = KeyedLocks()

    def start(self, cores: Mapping[str, Core], own: Own, devices: Collection[str]) -> None:
        """There are executors from now on: those that versions share, by device, and those that single versions are
        given: isolated ones, and all where a device has none to share."""
        self._cores, self._own, self._devices = cores, own, devices

    @property
    def enabled(self) -> bool:
        return bool(self._devices)

    def wanted(self, model: Model, resident: Resident | None) -> bool:
        """Whether an attachment of this version needs a session."""
        return resident is not None and specs.is_redirected(model.version.spec)

    def in_core(self, model: Model) -> bool:
        """Whether the version's weights lie in executors."""
        return self.enabled and specs.is_redirected(model.version.spec)

    def folder(self, version_id: str) -> Path:
        """Where the sockets of a version's sessions lie and nothing else; made if absent."""
        folder = self._folder / _short(version_id)
        if self.enabled:
            folder.mkdir(mode=0o711, exist_ok=True)
        return folder

    async def bring(self, resident: Resident, key: str) -> None:
        """Maps a version that comes to a device, before anybody has a lease; `key` says what kind of request waits for
        it. Raises RouseError."""
        session = self._session(resident.device.name, resident.model)
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            await self._mapped(session, resident, key)

    async def open(self, executor: Executor, resident: Resident) -> str:
        """Opens a session of a version; its socket's path. Raises RouseError."""
        device, model = resident.device.name, resident.model
        version_id = model.version_id
        socket = self.folder(version_id) / _short(executor.instance_id)
        session = self._session(device, model)
        async with self._locks.holding(f"{device}/{version_id}"):
            native = await self._mapped(session, resident)
            if not self._mappings[session].tapes and await self._load(native, session, model):
                self._load_the_others(session, model)
            candidates = None
            if records(model.version.spec):
                candidates = await self._shelf.candidates(model.version, model.artefact)
            self._open[executor.instance_id] = session
            await native.open_session(
                executor.instance_id, version_id, socket, processes.user(executor.pid),
                candidates=candidates, working_bytes=model.declared_bytes,
            )  # fmt: skip
        return str(socket)

    def _native(self, session: _Session, resident: Resident) -> Core:
        """The executor that the version uses there; its own is started. Raises Unimplemented EXECUTION_UNAVAILABLE."""
        device, function = session.device, resident.model.function
        if device not in self._devices or resident.segment is None:
            raise Unimplemented(
                "EXECUTION_UNAVAILABLE",
                f"function '{function}' asks for execution = 'rouse', and device {device} has no executor; start "
                "gpu-server with --executors",
                function=function,
            )
        if not session.own:
            return self._cores[device]
        if session not in self._owned:
            self._owned[session] = self._own.start(device, session.version_id)
            self._touched.add(session)
        return self._owned[session]

    async def _mapped(self, session: _Session, resident: Resident, key: str = "") -> Core:
        """The executor, which has the version: it is mapped anew where the executor ended since it came, or where what
        replayed was given up. Raises RouseError."""
        native = self._native(session, resident)
        if session not in self._mappings:
            await self._map(native, session, resident, key)
        return native

    def _core(self, session: _Session) -> Core:
        """The executor that a version is mapped in."""
        return self._owned[session] if session.own else self._cores[session.device]

    async def _map(self, native: Core, session: _Session, resident: Resident, key: str) -> None:
        """Maps a version that is not mapped. Its weights come as a tape uses them: one for requests of the kind `key`
        where there is one. Raises RouseError."""
        assert resident.segment is not None
        model = resident.model
        tapes = self._shelf.tapes(model.version, model.artefact) if records(model.version.spec) else []
        order = next((path for _, answers, path in tapes if answers.key == key), tapes[0][2] if tapes else None)
        await native.serving()
        if not session.own:
            # What an earlier life, or a call that was cut short, left there has no session of ours.
            await native.unmap_model(session.version_id)
        layout = rules.layout_digest(model.artefact.message.layout) if model.artefact.message else ""
        attachment_id = uuid.uuid4().hex
        self._touched.add(session)
        await native.map_model(
            session.version_id, attachment_id, model.version.addresses.base, model.artefact.image_bytes,
            resident.segment.path, layout, order, model.declared_bytes,
        )  # fmt: skip
        self._mappings[session] = _Mapping(attachment_id)

    # ---- tapes ----

    def answers(self, model: Model, key: str) -> bool:
        """Whether the node has tapes for requests of a kind; before they are loaded it is a guess."""
        if not records(model.version.spec):
            return False
        mappings = [self._mappings.get(self._session(device, model)) for device in self._devices]
        if any(mapping is not None and key in mapping.tapes.values() for mapping in mappings):
            return True
        found = self._shelf.tapes(model.version, model.artefact) if self.enabled else []
        return any(answers.key == key for _, answers, _ in found)

    def mapped_with(self, resident: Resident, key: str) -> bool:
        """Whether the resident's device has tapes loaded for requests of a kind."""
        mapping = self._mappings.get(self._session(resident.device.name, resident.model))
        return mapping is not None and key in mapping.tapes.values()

    async def map_tapes(self, resident: Resident, key: str) -> None:
        """Maps the version's weights, unless they are, and loads the tapes for requests of a kind. Raises RouseError:
        Unavailable NO_TAPE where none of them can be loaded."""
        model = resident.model
        session = self._session(resident.device.name, model)
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            native = await self._mapped(session, resident, key)
            more = key not in self._mappings[session].keys and await self._load(native, session, model, key)
            loaded = key in self._mappings[session].keys
        if more:
            self._load_the_others(session, model)
        if not loaded:
            raise Unavailable("NO_TAPE", f"device {session.device} has loaded none for {key}")

    def _load_the_others(self, session: _Session, model: Model) -> None:
        self._background.start(self.refresh_tapes(model), f"tapes of {session.version_id} on {session.device}")

    async def _load(self, native: Core, session: _Session, model: Model, first: str = "") -> bool:
        """Gives the executor some of the version's tapes that it does not have yet, those for requests of the kind
        `first` before others; whether there are more. Never fails: without tapes instances execute all requests."""
        mapping = self._mappings[session]
        new = [tape for tape in self._shelf.tapes(model.version, model.artefact) if tape[0] not in mapping.tapes]
        new.sort(key=lambda tape: tape[1].key != first)
        for name, answers, path in new[:AT_ONCE]:
            mapping.tapes[name] = None
            inputs = [core.TapeTensor(name=x.name, datatype=x.datatype, shape=x.shape) for x in answers.inputs]
            try:
                tape = core.TapeFile(path=str(path), inputs=inputs, output_names=answers.outputs)
                await native.load_tape(session.version_id, tape)
                mapping.tapes[name] = answers.key
            except RouseError as error:
                LOG.warning("tape not loaded function=%s device=%s reason=%s", model.function, session.device, error)
        return len(new) > AT_ONCE

    async def refresh_tapes(self, model: Model) -> None:
        """Gives tapes that are new on the node to every executor that has the version."""
        for session in [s for s in self._mappings if s.version_id == model.version_id]:
            more = True
            while more:
                # Let go in between: an eviction does not wait for all of them.
                async with self._locks.holding(f"{session.device}/{session.version_id}"):
                    mapped = session in self._mappings
                    more = mapped and await self._load(self._core(session), session, model)

    def access(self, lease: Lease) -> TapeAccess | None:
        """How requests are answered by tapes under a lease; None where there are none for it."""
        session = self._session(lease.device_name, lease.model)
        mapping = self._mappings.get(session)
        if mapping is None:
            return None
        self._mappings[session] = self._mappings.pop(session)
        keys, number = mapping.keys, lease.lease_id.rpartition("/")[2]
        link, lease_id = self._core(session).link, f"{mapping.attachment_id}/{number}"
        return TapeAccess(link=link, lease_id=lease_id, keys=sorted(keys)) if keys else None

    async def save_tapes(self, instance_id: str, folder: Path) -> core.SaveTapesResponse | None:
        """Has the executor write what an instance's session has recorded; None where it has no session. Raises
        RouseError."""
        session = self._open.get(instance_id)
        return await self._core(session).save_tapes(instance_id, folder) if session is not None else None

    def executor_of(self, resident: Resident) -> tuple[str, str]:
        """Which executor a resident uses: the device's, or there the version's own, which is then named."""
        return _executor(self._session(resident.device.name, resident.model))

    async def working(self, executor: tuple[str, str]) -> Mapping[str, int]:
        """The most that each version which an executor has mapped held there beside its weights, in bytes. Raises
        RouseError."""
        mapped = next((session for session in self._mappings if _executor(session) == executor), None)
        return await self._core(mapped).working() if mapped is not None else {}

    # ---- ending ----

    async def close(self, instance_id: str) -> None:
        """Ends an instance's session. Never fails: what cannot be asked for is gone with the executor."""
        session = self._open.get(instance_id)
        if session is None:
            return
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            if self._open.pop(instance_id, None) is None:
                return
            try:
                await self._core(session).close_session(instance_id)
            except RouseError as error:
                LOG.warning(
                    "session not closed instance=%s device=%s reason=%s", instance_id, session.device, error
                )  # fmt: skip

    async def unmap(self, resident: Resident, *, unless_open: bool = False) -> None:
        """Unmaps a version, after what is being replayed. Never fails.

        Args:
            unless_open: leaves it alone while an instance has a session.
        """
        session = self._session(resident.device.name, resident.model)
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            if session not in self._touched or (unless_open and self._has_sessions(session)):
                return
            try:
                await self._unmap(session)
            except RouseError as error:
                LOG.warning(
                    "not unmapped function=%s device=%s reason=%s", resident.model.function, session.device, error
                )

    async def _unmap(self, session: _Session) -> None:
        self._mappings.pop(session, None)
        if not session.own:
            await self._cores[session.device].unmap_model(session.version_id)
        elif self._owned.pop(session, None) is not None:
            # All that it has goes with it.
            await self._own.end(session.device, session.version_id)
        self._touched.discard(session)

    async def forget(self, version_id: str) -> None:
        """A version is gone: no process of its own waits for it any more."""
        if self.enabled:
            await self._own.forget(version_id)

    def lost(self, device: str, version_id: str = "") -> list[str]:
        """A device's executor ended, or that of an isolated version there: its sessions are over. The instances that
        had one."""

        def had(session: _Session) -> bool:
            return _executor(session) == (device, version_id)

        gone = [instance_id for instance_id, session in self._open.items() if had(session)]
        for instance_id in gone:
            del self._open[instance_id]
        for session in [s for s in self._mappings if had(s)]:
            del self._mappings[session]
        # An executor of a version's own is there until it is unmapped.
        self._touched = {session for session in self._touched if session.own or not had(session)}
        return gone

    def _session(self, device: str, model: Model) -> _Session:
        own = device not in self._cores or specs.is_isolated(model.version.spec)
        return _Session(device, model.version_id, own)

    def _has_sessions(self, session: _Session) -> bool:
        return session in self._open.values()


def records(spec: FunctionSpec) -> bool:
    """Whether a function's requests are recorded."""
    return specs.is_redirected(spec) and specs.uses_tapes(spec) and not spec.decoupled


def _executor(session: _Session) -> tuple[str, str]:
    return session.device, session.version_id if session.own else ""


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:SHORT]

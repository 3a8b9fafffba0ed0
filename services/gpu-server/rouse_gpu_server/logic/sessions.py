"""Sessions of redirected functions: which instance computes through which device's native executor.

A version is mapped in an executor while one of its instances has a session there, and with tapes as long as it stays on
the device: those answer without an instance. Its segment stays what it is for plain execution, the device's copy of the
weights, and is where the executor takes them from.

Isolated versions have an executor of their own on each device where they are mapped, until they are unmapped there.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rouse_common.errors import ResourceExhausted, RouseError, Unavailable, Unimplemented
from rouse_common.locks import KeyedLocks
from rouse_contracts import core, specs
from rouse_contracts import states as rules
from rouse_contracts.device import TapeAccess
from rouse_contracts.functions import FunctionSpec
from rouse_gpu_server.adapters import processes
from rouse_gpu_server.adapters.cores import SOCKETS, Core
from rouse_gpu_server.logic.shelf import Shelf
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.records import Device, Executor, Lease, Model, Resident

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
        self._own: Own
        # Executors of isolated versions.
        self._owned: dict[_Session, Core] = {}
        self._open: dict[str, _Session] = {}
        # Those that leases were granted for last come last.
        self._mappings: dict[_Session, _Mapping] = {}
        # What executors may have mapped, also where nobody heard that they have.
        self._touched: set[_Session] = set()
        # One at a time a version and device: mapping and unmapping must not meet.
        self._locks = KeyedLocks()

    def start(self, cores: Mapping[str, Core], own: Own) -> None:
        """There are executors from now on: by device, and those that isolated versions are given."""
        self._cores, self._own = cores, own

    @property
    def enabled(self) -> bool:
        return bool(self._cores)

    def wanted(self, model: Model, resident: Resident | None) -> bool:
        """Whether an attachment of this version needs a session."""
        return resident is not None and specs.is_redirected(model.version.spec)

    def folder(self, version_id: str) -> Path:
        """Where the sockets of a version's sessions lie and nothing else; made if absent."""
        folder = self._folder / _short(version_id)
        if self.enabled:
            folder.mkdir(mode=0o711, exist_ok=True)
        return folder

    async def open(self, executor: Executor, model: Model, resident: Resident, attachment_id: str) -> str:
        """Maps the version's weights, unless they are, and opens a session; its socket's path. Raises RouseError."""
        device, version_id = resident.device.name, model.version_id
        socket = self.folder(version_id) / _short(executor.instance_id)
        session = _session(device, model)
        async with self._locks.holding(f"{device}/{version_id}"):
            native = self._native(session, model, resident)
            if session not in self._mappings:
                await self._map(native, session, model, resident, attachment_id)
                if await self._load(native, session, model):
                    self._load_the_others(session, model)
            candidates = None
            if records(model.version.spec):
                candidates = await self._shelf.candidates(model.version, model.artefact)
            self._open[executor.instance_id] = session
            await native.open_session(
                executor.instance_id, version_id, socket, processes.user(executor.pid), candidates=candidates
            )
        return str(socket)

    def _native(self, session: _Session, model: Model, resident: Resident) -> Core:
        """The executor that the version uses there; its own is started. Raises Unimplemented EXECUTION_UNAVAILABLE."""
        device = session.device
        native = self._cores.get(device)
        if native is None or resident.segment is None:
            raise Unimplemented(
                "EXECUTION_UNAVAILABLE",
                f"function '{model.function}' asks for execution = 'rouse', and device {device} has no executor; start "
                "gpu-server with --executors",
                function=model.function,
            )
        if not session.own:
            return native
        if session not in self._owned:
            self._owned[session] = self._own.start(device, session.version_id)
            self._touched.add(session)
        return self._owned[session]

    def _core(self, session: _Session) -> Core:
        """The executor that a version is mapped in."""
        return self._owned[session] if session.own else self._cores[session.device]

    async def _map(
        self, native: Core, session: _Session, model: Model, resident: Resident, attachment_id: str, key: str = ""
    ) -> None:
        """Maps a version that is not mapped. Its weights come as a tape uses them: one for requests of the kind `key`
        where there is one. Raises RouseError."""
        assert resident.segment is not None
        tapes = self._shelf.tapes(model.version, model.artefact) if records(model.version.spec) else []
        order = next((path for _, answers, path in tapes if answers.key == key), tapes[0][2] if tapes else None)
        await native.serving()
        if not session.own:
            # What an earlier life, or a call that was cut short, left there has no session of ours.
            await native.unmap_model(session.version_id)
        layout = rules.layout_digest(model.artefact.message.layout) if model.artefact.message else ""
        self._touched.add(session)
        while True:
            try:
                await native.map_model(
                    session.version_id, attachment_id, model.version.addresses.base, model.artefact.image_bytes,
                    resident.segment.path, layout, order,
                )  # fmt: skip
                break
            except ResourceExhausted:
                # It maps in larger pieces than the ledger counts. Models that nobody computes with give way.
                if session.own or not await self._make_room(resident.device):
                    raise
        self._mappings[session] = _Mapping(attachment_id)

    async def _make_room(self, device: Device) -> bool:
        """Unmaps the version without a session that had no lease for longest; whether there was one. Who is being
        mapped is in no mapping yet, so nobody who waits for a lock here is waited for. Raises RouseError."""
        executing = device.lease.model.version_id if device.lease is not None else ""
        for session in list(self._mappings):
            if session.device == device.name and not session.own and session.version_id != executing:
                async with self._locks.holding(f"{session.device}/{session.version_id}"):
                    if session in self._mappings and not self._has_sessions(session):
                        await self._unmap(session)
                        return True
        return False

    # ---- tapes ----

    def answers(self, model: Model, key: str) -> bool:
        """Whether the node has tapes for requests of a kind; before they are loaded it is a guess."""
        if not records(model.version.spec):
            return False
        mappings = [self._mappings.get(_session(device, model)) for device in self._cores]
        if any(mapping is not None and key in mapping.tapes.values() for mapping in mappings):
            return True
        found = self._shelf.tapes(model.version, model.artefact) if self.enabled else []
        return any(answers.key == key for _, answers, _ in found)

    def mapped_with(self, resident: Resident, key: str) -> bool:
        """Whether the resident's device has tapes loaded for requests of a kind."""
        mapping = self._mappings.get(_session(resident.device.name, resident.model))
        return mapping is not None and key in mapping.tapes.values()

    async def map_tapes(self, model: Model, resident: Resident, key: str) -> None:
        """Maps the version's weights, unless they are, and loads the tapes for requests of a kind. Raises RouseError:
        Unavailable NO_TAPE where none of them can be loaded."""
        session = _session(resident.device.name, model)
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            native = self._native(session, model, resident)
            if session not in self._mappings:
                await self._map(native, session, model, resident, uuid.uuid4().hex, key)
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
        session = _session(lease.device_name, lease.model)
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

    # ---- ending ----

    async def close(self, instance_id: str) -> None:
        """Ends an instance's session, and unmaps its version where that was the last one and it has no tapes. Never
        fails: what cannot be asked for is gone with the executor."""
        session = self._open.get(instance_id)
        if session is None:
            return
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            if self._open.pop(instance_id, None) is None:
                return
            try:
                await self._core(session).close_session(instance_id)
                mapping = self._mappings.get(session)
                if not self._has_sessions(session) and (mapping is None or not mapping.keys):
                    await self._unmap(session)
            except RouseError as error:
                LOG.warning(
                    "session not closed instance=%s device=%s reason=%s", instance_id, session.device, error
                )  # fmt: skip

    async def unmap(self, resident: Resident, *, unless_open: bool = False) -> None:
        """Unmaps a version, after what is being replayed. Never fails.

        Args:
            unless_open: leaves it alone while an instance has a session.
        """
        session = _session(resident.device.name, resident.model)
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

    def lost(self, device: str, version_id: str = "") -> list[str]:
        """A device's executor ended, or that of an isolated version there: its sessions are over. The instances that
        had one."""

        def had(session: _Session) -> bool:
            return session.device == device and (session.version_id if session.own else "") == version_id

        gone = [instance_id for instance_id, session in self._open.items() if had(session)]
        for instance_id in gone:
            del self._open[instance_id]
        for session in [s for s in self._mappings if had(s)]:
            del self._mappings[session]
        # An executor of a version's own is there until it is unmapped.
        self._touched = {session for session in self._touched if session.own or not had(session)}
        return gone

    def _has_sessions(self, session: _Session) -> bool:
        return session in self._open.values()


def records(spec: FunctionSpec) -> bool:
    """Whether a function's requests are recorded."""
    return specs.is_redirected(spec) and specs.uses_tapes(spec) and not spec.decoupled


def _session(device: str, model: Model) -> _Session:
    return _Session(device, model.version_id, specs.is_isolated(model.version.spec))


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:SHORT]

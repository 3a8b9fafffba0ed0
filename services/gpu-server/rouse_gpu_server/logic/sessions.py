"""Sessions of redirected functions: which instance computes through which device's native executor.

A version is mapped in an executor while at least one of its instances has a session there; its segment stays what it is
for plain execution, the device's copy of the weights, and is where the executor takes them from.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rouse_common.errors import RouseError, Unimplemented
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
    """An instance's session: where it is, and of which version."""

    device: str
    version_id: str


@dataclass
class _Mapping:
    """A version as an executor has it.

    Args:
        attachment_id: what leases have to begin with that it executes.
        tapes: those loaded there, by name; None where it was refused, with what they answer (rouse_contracts.tapes).
    """

    attachment_id: str
    tapes: dict[str, str | None] = field(default_factory=dict)


class Sessions:
    """Args:
    memory: folder for the sessions' sockets.
    shelf: the tapes of the node.
    """

    def __init__(self, memory: Path, shelf: Shelf, background: Background) -> None:
        self._folder, self._shelf, self._background = memory / SOCKETS, shelf, background
        self._cores: Mapping[str, Core] = {}
        self._open: dict[str, _Session] = {}
        self._mappings: dict[_Session, _Mapping] = {}
        # One at a time a version and device: mapping and unmapping must not meet.
        self._locks = KeyedLocks()

    def start(self, cores: Mapping[str, Core]) -> None:
        """There are executors from now on, by device."""
        self._cores = cores

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
        native = self._cores.get(device)
        if native is None or resident.segment is None:
            raise Unimplemented(
                "EXECUTION_UNAVAILABLE",
                f"function '{model.function}' asks for execution = 'rouse', and device {device} has no executor; start "
                "gpu-server with --executors",
                function=model.function,
            )
        socket = self.folder(version_id) / _short(executor.instance_id)
        session = _Session(device, version_id)
        async with self._locks.holding(f"{device}/{version_id}"):
            if not self._mapped(device, version_id):
                # What an earlier life, or a call that was cut short, left there has no session of ours.
                await native.unmap_model(version_id)
                layout = rules.layout_digest(model.artefact.message.layout) if model.artefact.message else ""
                await native.map_model(
                    version_id, attachment_id, model.version.addresses.base, model.artefact.image_bytes,
                    resident.segment.path, layout,
                )  # fmt: skip
                self._mappings[session] = _Mapping(attachment_id)
                if await self._load(native, session, model):
                    self._background.start(self.refresh_tapes(model), f"tapes of {version_id} on {device}")
            self._open[executor.instance_id] = session
            await native.open_session(
                executor.instance_id, version_id, socket, processes.user(executor.pid),
                record=records(model.version.spec),
            )  # fmt: skip
        return str(socket)

    # ---- tapes ----

    async def _load(self, native: Core, session: _Session, model: Model) -> bool:
        """Gives the executor some of the version's tapes that it does not have yet; whether there are more. Never
        fails: without tapes instances execute all requests."""
        mapping = self._mappings[session]
        new = [tape for tape in self._shelf.tapes(model.version, model.artefact) if tape[0] not in mapping.tapes]
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
                    native, mapped = self._cores[session.device], session in self._mappings
                    more = mapped and await self._load(native, session, model)

    def access(self, lease: Lease) -> TapeAccess | None:
        """How requests are answered by tapes under a lease; None where there are none for it."""
        mapping = self._mappings.get(_Session(lease.device_name, lease.model.version_id))
        if mapping is None:
            return None
        keys = {key for key in mapping.tapes.values() if key is not None}
        number = lease.lease_id.rpartition("/")[2]
        link, lease_id = self._cores[lease.device_name].link, f"{mapping.attachment_id}/{number}"
        return TapeAccess(link=link, lease_id=lease_id, keys=sorted(keys)) if keys else None

    async def save_tapes(self, instance_id: str, folder: Path) -> core.SaveTapesResponse | None:
        """Has the executor write what an instance's session has recorded; None where it has no session. Raises
        RouseError."""
        session = self._open.get(instance_id)
        return await self._cores[session.device].save_tapes(instance_id, folder) if session is not None else None

    # ---- ending ----

    async def close(self, instance_id: str) -> None:
        """Ends an instance's session, and unmaps its version where that was the last one. Never fails: what cannot be
        asked for is gone with the executor."""
        session = self._open.get(instance_id)
        if session is None:
            return
        native = self._cores[session.device]
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            if self._open.pop(instance_id, None) is None:
                return
            try:
                await native.close_session(instance_id)
                if not self._mapped(session.device, session.version_id):
                    self._mappings.pop(session, None)
                    await native.unmap_model(session.version_id)
            except RouseError as error:
                LOG.warning(
                    "session not closed instance=%s device=%s reason=%s", instance_id, session.device, error
                )  # fmt: skip

    def lost(self, device: str) -> list[str]:
        """A device's executor ended: its sessions are over. The instances that had one."""
        gone = [instance_id for instance_id, session in self._open.items() if session.device == device]
        for instance_id in gone:
            del self._open[instance_id]
        for session in [s for s in self._mappings if s.device == device]:
            del self._mappings[session]
        return gone

    def _mapped(self, device: str, version_id: str) -> bool:
        return _Session(device, version_id) in self._open.values()


def records(spec: FunctionSpec) -> bool:
    """Whether a function's requests are recorded."""
    return specs.is_redirected(spec) and specs.uses_tapes(spec) and not spec.decoupled


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:SHORT]

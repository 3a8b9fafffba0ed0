"""Sessions of redirected functions: which instance computes through which device's native executor.

A version is mapped in an executor while at least one of its instances has a session there; its segment stays what it is
for plain execution, the device's copy of the weights, and is where the executor takes them from.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rouse_common.errors import RouseError, Unimplemented
from rouse_common.locks import KeyedLocks
from rouse_contracts import specs
from rouse_gpu_server.adapters import processes
from rouse_gpu_server.adapters.cores import SOCKETS, Core
from rouse_gpu_server.state.records import Executor, Model, Resident

LOG = logging.getLogger(__name__)
# Socket paths have 107 bytes at most: names of versions and instances are shortened to so many hex digits.
SHORT = 16


@dataclass(frozen=True)
class _Session:
    """An instance's session: where it is, and of which version."""

    device: str
    version_id: str


class Sessions:
    """Args:
    memory: folder for the sessions' sockets.
    """

    def __init__(self, memory: Path) -> None:
        self._folder = memory / SOCKETS
        self._cores: Mapping[str, Core] = {}
        self._open: dict[str, _Session] = {}
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
        core = self._cores.get(device)
        if core is None or resident.segment is None:
            raise Unimplemented(
                "EXECUTION_UNAVAILABLE",
                f"function '{model.function}' asks for execution = 'rouse', and device {device} has no executor; start "
                "gpu-server with --executors",
                function=model.function,
            )
        socket = self.folder(version_id) / _short(executor.instance_id)
        async with self._locks.holding(f"{device}/{version_id}"):
            if not self._mapped(device, version_id):
                # What an earlier life, or a call that was cut short, left there has no session of ours.
                await core.unmap_model(version_id)
                await core.map_model(
                    version_id, attachment_id, model.version.addresses.base, model.artefact.image_bytes,
                    resident.segment.path,
                )  # fmt: skip
            self._open[executor.instance_id] = _Session(device, version_id)
            await core.open_session(executor.instance_id, version_id, socket, processes.user(executor.pid))
        return str(socket)

    async def close(self, instance_id: str) -> None:
        """Ends an instance's session, and unmaps its version where that was the last one. Never fails: what cannot be
        asked for is gone with the executor."""
        session = self._open.get(instance_id)
        if session is None:
            return
        core = self._cores[session.device]
        async with self._locks.holding(f"{session.device}/{session.version_id}"):
            if self._open.pop(instance_id, None) is None:
                return
            try:
                await core.close_session(instance_id)
                if not self._mapped(session.device, session.version_id):
                    await core.unmap_model(session.version_id)
            except RouseError as error:
                LOG.warning(
                    "session not closed instance=%s device=%s reason=%s", instance_id, session.device, error
                )  # fmt: skip

    def lost(self, device: str) -> list[str]:
        """A device's executor ended: its sessions are over. The instances that had one."""
        gone = [instance_id for instance_id, session in self._open.items() if session.device == device]
        for instance_id in gone:
            del self._open[instance_id]
        return gone

    def _mapped(self, device: str, version_id: str) -> bool:
        return _Session(device, version_id) in self._open.values()


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:SHORT]

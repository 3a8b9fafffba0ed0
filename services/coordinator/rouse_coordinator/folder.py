"""The folder of the instances' sockets: ours alone, and empty at the start."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from rouse_contracts.links import LINK_SUFFIX

SOCKET = "coordinator.sock"
LOCK = "lock"


class RuntimeFolder:
    """Made with access for us only, locked against a second coordinator, cleared of sockets that were left behind."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    @property
    def address(self) -> str:
        """unix:PATH of the coordinator's own socket."""
        return f"unix:{self.path / SOCKET}"

    def open(self) -> None:
        """Raises OSError where the folder belongs to somebody else or another coordinator uses it."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.stat().st_uid != os.getuid():
            raise PermissionError(f"runtime_dir {self.path} belongs to another user")
        self.path.chmod(0o700)
        self._lock = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"runtime_dir {self.path} is used by another coordinator; give each its own") from error
        self._remove_sockets()

    def let_instances_in(self) -> None:
        """Opens the coordinator's socket to the users of instances; the folder around it stays closed to them."""
        (self.path / SOCKET).chmod(0o666)

    def close(self) -> None:
        """Removes what is left in the folder."""
        self._remove_sockets()
        if self._lock is not None:
            (self.path / LOCK).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def _remove_sockets(self) -> None:
        for pattern in ("*.sock", f"*.sock{LINK_SUFFIX}"):
            for socket in self.path.glob(pattern):
                socket.unlink(missing_ok=True)
        for folder in self.path.iterdir():
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder, ignore_errors=True)

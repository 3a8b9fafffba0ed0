"""The stores start, keep their data over a crash, refuse strangers and end with their parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg2
import pytest

from rouse_embedded.folders import still_running
from rouse_embedded.stores import Nats, Postgres, Redis, Store, StoreError
from rouse_embedded.stores.base import LAUNCH


def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(url.replace("+psycopg2", ""))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def test_postgres_keeps_committed_rows_over_a_crash(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "pg")
    server.start()
    sql(server.url, "CREATE TABLE kept (n int)")
    sql(server.url, "INSERT INTO kept VALUES (7)")
    server.kill()
    assert (server.data / "postmaster.pid").exists()
    server.start()
    assert sql(server.url, "SELECT n FROM kept") == [(7,)]
    server.stop()
    assert not (server.data / "postmaster.pid").exists()


def test_postgres_ignores_a_pid_file_whose_number_was_given_to_somebody_else(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "pg", durable=False)
    server.start()
    server.kill()
    path = server.data / "postmaster.pid"
    path.write_text(path.read_text().replace(path.read_text().split()[0], str(os.getpid()), 1))
    server.start()
    assert sql(server.url, "SELECT 1") == [(1,)]
    server.stop()


def test_postgres_wants_its_password(postgres: Postgres, postgres_url: str) -> None:
    assert sql(postgres_url, "SELECT current_user") == [("rouse",)]
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(postgres_url.replace("+psycopg2", "").replace(postgres.password, "guess"))


def test_every_test_has_an_empty_database(postgres_url: str) -> None:
    assert sql(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_redis_refuses_strangers_and_comes_back(tmp_path: Path) -> None:
    server = Redis(tmp_path / "redis")
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100).startswith(b"-NOAUTH")
    server.kill()
    server.start()
    server.flush()
    server.stop()
    with pytest.raises(StoreError, match="does not answer"):
        server.flush()


def test_nats_refuses_strangers_and_keeps_its_streams(nats: Nats) -> None:
    def ask(words: dict[str, object], subject: str, payload: str) -> str:
        with socket.create_connection(("127.0.0.1", nats.port), 5) as connection:
            lines = connection.makefile("rb")
            lines.readline()
            publish = f"PUB {subject} _INBOX.t {len(payload)}\r\n{payload}\r\n"
            connection.sendall(f"CONNECT {json.dumps(words)}\r\nSUB _INBOX.t 1\r\n{publish}".encode())
            first = lines.readline().decode()
            return first + (lines.readline().decode() if first.startswith("MSG") else "")

    known = {"verbose": False, "user": "rouse", "pass": nats.password}
    assert "Authorization Violation" in ask({"verbose": False}, "$JS.API.INFO", "")
    assert '"did_create":true' in ask(known, "$JS.API.STREAM.CREATE.kept", '{"name":"kept","subjects":["kept.>"]}')
    nats.kill()
    nats.start()
    assert '"name":"kept"' in ask(known, "$JS.API.STREAM.INFO.kept", "")


@pytest.mark.parametrize("kind", [Postgres, Nats, Redis])
def test_no_secret_is_readable_or_in_a_command_line(kind: type[Store], tmp_path: Path) -> None:
    server = kind(tmp_path / "store")
    server.start()
    try:
        assert server.pid is not None
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        assert all(server.password not in " ".join(process.cmdline()) for process in family)
        holding = [
            path
            for path in server.folder.rglob("*")
            if path.is_file() and path.stat().st_size < 1 << 16 and server.password in path.read_text(errors="replace")
        ]
        assert server.folder / "password" in holding
        assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in holding] == ["0o600"] * len(holding)
    finally:
        server.stop()


@pytest.mark.parametrize("kind", [Postgres, Nats, Redis])
def test_a_store_ends_with_a_killed_parent(kind: type[Store], tmp_path: Path) -> None:
    code = (
        "import sys, signal; from pathlib import Path; from rouse_embedded.stores import *\n"
        f"store = {kind.__name__}(Path(sys.argv[1])); store.start(); print(store.pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    store = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert still_running([store], 20) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_that_may_not_become_another_user_is_told_what_to_do() -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv, which takes the capability away, is not installed")
    program = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), "15", "65534", "--", "/bin/true"]
    assert subprocess.run(program, check=False).returncode == 0
    done = subprocess.run([setpriv, "--bounding-set=-setuid", *program], capture_output=True, text=True, check=False)
    assert done.returncode == 126
    assert "run the mesh as another user" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_store_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Redis(tmp_path / "redis", port=taken.getsockname()[1])
        with pytest.raises(StoreError, match="Address already in use"):
            server.start()

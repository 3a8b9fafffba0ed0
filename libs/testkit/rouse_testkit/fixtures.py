"""pytest fixtures: real stores and a manual clock. tests/conftest.py loads this module as a plugin.

A store's process is started at its first use and shared by the run; what a test gets is its own: an empty
database, an empty Redis, a NATS server without streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rouse_embedded.stores import Nats, Postgres, Redis
from rouse_testkit.clock import ManualClock

if TYPE_CHECKING:
    from rouse_testkit.mesh import Mesh


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """The run's PostgreSQL server."""
    server = Postgres(tmp_path_factory.mktemp("postgres"), durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """SQLAlchemy URL (psycopg2) of a fresh empty database."""
    name = f"test_{secrets.token_hex(6)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Nats]:
    """A NATS server of the test's own, with an empty JetStream; may be killed and started again."""
    server = Nats(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nats_url(nats: Nats) -> str:
    """URL, with user and password, of a NATS server with an empty JetStream."""
    return nats.url


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """The run's Redis server."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    """URL, with password, of a Redis with nothing in it."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test advances it."""
    return ManualClock()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A whole mesh, shared by the tests of a module: one node with the device gpu0 of 256 MiB."""
    yield from _running(tmp_path_factory.mktemp("mesh"))


@pytest.fixture
def own_mesh(tmp_path: Path) -> Iterator[Mesh]:
    """A whole mesh of the test's own, which it may stop and start."""
    yield from _running(tmp_path)


@pytest.fixture(scope="module")
def tiny_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A whole mesh whose only device is too small for what the tests deploy together."""
    yield from _running(tmp_path_factory.mktemp("mesh"), devices=("host:gpu0=24MiB",))


def _running(folder: Path, **options: Any) -> Iterator[Mesh]:
    # Imported where it is wanted: it brings the SDK and every contract, which most tests do without.
    from rouse_testkit.mesh import Mesh

    mesh = Mesh(folder, **options)
    mesh.start()
    yield mesh
    mesh.stop()

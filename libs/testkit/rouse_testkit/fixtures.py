"""pytest fixtures: real stores and a manual clock. tests/conftest.py loads this module as a plugin.

A store's process is started at its first use and shared by the run; what a test gets is its own: an empty
database, an empty Redis, a NATS server without streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from rouse_embedded.stores import Nats, Postgres, Redis
from rouse_testkit.clock import ManualClock


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

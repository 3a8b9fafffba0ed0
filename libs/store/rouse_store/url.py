"""How the control plane connects to its database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_MS = 10_000
LOCK_TIMEOUT_MS = 5_000
IDLE_IN_TRANSACTION_MS = 15_000
KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_COUNT = 3
USER_TIMEOUT_MS = 10_000
DRIVERS = ("postgres", "postgresql", "postgresql+psycopg2")


def normalised(database_url: str) -> URL:
    """The URL with our driver. Raises ValueError, without the URL in its text, where it is none of ours."""
    try:
        url = make_url(database_url)
    except ArgumentError:
        raise ValueError("want a URL as postgresql+psycopg2://USER:PASSWORD@HOST:PORT/DATABASE") from None
    if url.drivername not in DRIVERS:
        raise ValueError(f"want a PostgreSQL URL, got one for '{url.drivername}'")
    return url.set(drivername="postgresql+psycopg2")


def connect_args(application: str, *, statement_ms: int = STATEMENT_TIMEOUT_MS) -> dict[str, Any]:
    """What bounds every wait of a connection: connecting, statements, locks, and a peer that fell silent."""
    limits = {
        "statement_timeout": statement_ms,
        "lock_timeout": LOCK_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "timezone": "UTC",
        # The server notices a client that is gone too, and gives its locks free.
        "tcp_keepalives_idle": KEEPALIVE_IDLE_S,
        "tcp_keepalives_interval": KEEPALIVE_INTERVAL_S,
        "tcp_keepalives_count": KEEPALIVE_COUNT,
    }
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": application,
        "options": " ".join(f"-c {key}={value}" for key, value in limits.items()),
        "keepalives_idle": KEEPALIVE_IDLE_S,
        "keepalives_interval": KEEPALIVE_INTERVAL_S,
        "keepalives_count": KEEPALIVE_COUNT,
        "tcp_user_timeout": USER_TIMEOUT_MS,
    }

"""One place where the database's errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from rouse_common.errors import Unavailable

# SQLSTATEs after which the same transaction may be tried again: it was rolled back whole.
SERIALIZATION_FAILURE = "40001"
DEADLOCK_DETECTED = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
UNIQUE_VIOLATION = "23505"
# Somebody else took the same addresses first; the next attempt sees them.
EXCLUSION_VIOLATION = "23P01"
RETRYABLE = frozenset({SERIALIZATION_FAILURE, DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, EXCLUSION_VIOLATION})
# Classes and states in which the server is there but cannot serve us now: connection exceptions,
# insufficient resources, operator intervention (shutdown, statement timeout), a standby after a failover,
# a database that is not there yet.
AWAY = ("08", "53", "57", "25006", "3D000")
RETRY_AFTER_S = 1.0


class Conflict(Exception):
    """The transaction met another one and was rolled back; trying again is safe."""


def _state(error: exc.DBAPIError) -> str:
    return getattr(error.orig, "pgcode", None) or ""


def is_unique_violation(error: exc.IntegrityError) -> bool:
    return _state(error) == UNIQUE_VIOLATION


def _down(text: str) -> Unavailable:
    return Unavailable(
        "DATABASE_DOWN", f"the control-plane database cannot serve: {text}; retry soon", retry_after_s=RETRY_AFTER_S
    )


@contextmanager
def translate() -> Iterator[None]:
    """Raises Conflict or Unavailable DATABASE_DOWN for the errors that stand for these; others pass."""
    try:
        yield
    except exc.TimeoutError:
        raise _down("every connection of the pool is in use") from None
    except exc.DBAPIError as error:
        state = _state(error)
        if state in RETRYABLE:
            raise Conflict(state) from error
        lost = error.connection_invalidated or (isinstance(error, exc.OperationalError) and not state)
        if lost or state.startswith(AWAY) or isinstance(error, exc.InterfaceError):
            # The driver's text names host and port, never the password.
            raise _down(" ".join(str(error.orig).split())[:200]) from error
        raise

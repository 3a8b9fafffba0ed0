"""What NATS and its client report, as the errors of this mesh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nats import errors

from rouse_common.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unavailable,
)

RETRY_AFTER_S = 1.0

# Error codes of the JetStream API (nats-server's errors.json).
NO_STORAGE = {10002, 10023, 10028, 10047, 10122}
STREAM_EXISTS = {10058, 10065}
NO_STREAM = {10059}
NO_CONSUMER = {10014}
NO_MESSAGE = {10037}
STORE_FAILED = {10077}
TOO_LARGE = {10054}
NOT_NOW = {10008, 10009, 10039, 10076}


def bus_down(what: str, why: object, **metadata: object) -> Unavailable:
    """NATS cannot be reached, or did not answer."""
    return Unavailable(
        "BUS_DOWN", f"{what}: NATS is not reachable ({why}); it is tried again by itself", retry_after_s=RETRY_AFTER_S,
        **metadata,
    )  # fmt: skip


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns the client's exceptions in a block into typed errors that say `what` was being done."""
    try:
        yield
    except errors.MaxPayloadError:
        raise InvalidArgument("MESSAGE_TOO_LARGE", f"{what}: larger than the largest message NATS takes") from None
    except errors.BadSubjectError:
        raise InvalidArgument("BAD_SUBJECT", f"{what}: not a subject") from None
    except errors.NoRespondersError:
        raise NotFound("NO_RESPONDERS", f"{what}: nobody listens to this subject") from None
    except (errors.TimeoutError, TimeoutError):
        raise bus_down(what, "no answer in time") from None
    except (errors.Error, OSError) as error:
        raise bus_down(what, error) from None


def api_error(what: str, error: dict[str, Any]) -> RouseError:
    """The typed error of an answer of the JetStream API."""
    code, text = error.get("err_code", 0), error.get("description", "unknown error")
    if code in NO_STREAM:
        return NotFound("STREAM_NOT_FOUND", f"{what}: there is no such stream")
    if code in NO_CONSUMER:
        return NotFound("CONSUMER_NOT_FOUND", f"{what}: there is no such consumer")
    if code in NO_MESSAGE:
        return NotFound("MESSAGE_NOT_FOUND", f"{what}: there is no such message")
    if code in STREAM_EXISTS:
        return AlreadyExists("STREAM_EXISTS", f"{what}: {text}")
    if code in TOO_LARGE:
        return InvalidArgument("MESSAGE_TOO_LARGE", f"{what}: {text}")
    if code in STORE_FAILED and "maximum" in text:
        return ResourceExhausted("STREAM_FULL", f"{what}: {text}")
    if code in NO_STORAGE or code in STORE_FAILED:
        return ResourceExhausted("STORAGE_FULL", f"{what}: NATS has no room left ({text})")
    if code in NOT_NOW or error.get("code") == 503:
        return bus_down(what, text)
    return Internal("BUS_ERROR", f"{what}: NATS answered {code}: {text}")

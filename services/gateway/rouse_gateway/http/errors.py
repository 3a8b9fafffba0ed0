"""Errors as HTTP answers: the one table of status codes, and the body that every failure has."""

from __future__ import annotations

import json
import math

import grpc

from rouse_common.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unimplemented,
)
from rouse_contracts.status import shortened

# As google.rpc.Code maps them.
STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# What HTTP has a status of its own for.
BY_REASON = {
    "METHOD_NOT_ALLOWED": 405,
    "SLOW_REQUEST": 408,
    "BODY_TOO_LARGE": 413,
    "UNSUPPORTED_ENCODING": 415,
    "HEADERS_TOO_LARGE": 431,
}
MAX_METADATA_CHARS = 300


def status_of(error: RouseError) -> int:
    """The HTTP status that an error is answered with."""
    return BY_REASON.get(error.reason) or STATUS.get(error.code, 500)


def body_of(error: RouseError) -> bytes:
    """`{"error": text, "code", "reason", "metadata"}`, and `retry_after_s` where a retry may help."""
    said: dict[str, object] = {
        "error": shortened(error.message),
        "code": error.code.name,
        "reason": error.reason,
        "metadata": {key: value[:MAX_METADATA_CHARS] for key, value in error.metadata.items()},
    }
    if error.retry_after_s is not None:
        said["retry_after_s"] = error.retry_after_s
    return json.dumps(said).encode()


def retry_after(error: RouseError) -> bytes | None:
    """The value of the header retry-after, in whole seconds; None where a retry does not help."""
    return None if error.retry_after_s is None else str(max(1, math.ceil(error.retry_after_s))).encode()


def no_such_path(path: str) -> NotFound:
    return NotFound("NO_SUCH_PATH", f"nothing is served at {path[:200]}; GET /openapi.json describes what is")


def method_not_allowed(method: str, path: str, allowed: str) -> Unimplemented:
    return Unimplemented(
        "METHOD_NOT_ALLOWED", f"{method} is not served at {path[:200]}; use {allowed}", allowed=allowed
    )


def too_large(limit: int) -> ResourceExhausted:
    return ResourceExhausted(
        "BODY_TOO_LARGE", f"the body is larger than {limit} bytes, inflated; send less in a request", limit_bytes=limit
    )


def slow_request(limit_s: float) -> DeadlineExceeded:
    return DeadlineExceeded("SLOW_REQUEST", f"the request did not arrive within {limit_s:g} s; send it faster")


def bad_request(text: str, reason: str = "MALFORMED_REQUEST", **metadata: str) -> InvalidArgument:
    error = InvalidArgument(reason, text)
    error.metadata.update(metadata)
    return error

"""One hierarchy of errors, and the one table between it and gRPC status codes.

Raise the class that fits, with a reason in UPPER_SNAKE_CASE that the contract documents, a message
that says what happened, where, and what to do next, and the names concerned as metadata::

    raise NotFound("FUNCTION_NOT_FOUND", f"there is no function '{name}'; see `rouse functions`", function=name)
"""

from __future__ import annotations

from typing import ClassVar

import grpc

from rouse_contracts.status import ErrorDetails, decode_details, decode_status, encode_details


class RouseError(Exception):
    """A failure that is answered to the caller.

    Attributes:
        reason: UPPER_SNAKE_CASE, stable, for programs.
        message: for people.
        metadata: names concerned: function, node, device, tensor, ...
        retry_after_s: seconds after which a retry may succeed; None where a retry does not help.
        violations: quotas that were exceeded: (whose, in words).
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    violations: tuple[tuple[str, str], ...] = ()

    def __init__(self, reason: str, message: str, /, *, retry_after_s: float | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def __str__(self) -> str:
        return self.message

    @property
    def details(self) -> ErrorDetails:
        return ErrorDetails(self.reason, self.metadata, self.retry_after_s, self.violations)


class InvalidArgument(RouseError):
    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(RouseError):
    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(RouseError):
    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(RouseError):
    code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhausted(RouseError):
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(RouseError):
    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(RouseError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(RouseError):
    code = grpc.StatusCode.CANCELLED


class PermissionDenied(RouseError):
    code = grpc.StatusCode.PERMISSION_DENIED


class Unauthenticated(RouseError):
    code = grpc.StatusCode.UNAUTHENTICATED


class Unimplemented(RouseError):
    code = grpc.StatusCode.UNIMPLEMENTED


class DataLoss(RouseError):
    code = grpc.StatusCode.DATA_LOSS


class Internal(RouseError):
    code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[grpc.StatusCode, type[RouseError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
        PermissionDenied,
        Unauthenticated,
        Unimplemented,
        DataLoss,
        Internal,
    )
}


def from_rpc_error(error: grpc.RpcError) -> RouseError:
    """The typed error that a failed call stands for, with its details."""
    details = decode_details(error)
    cls = _BY_CODE.get(error.code(), Internal)
    typed = cls(details.reason, error.details() or error.code().name, retry_after_s=details.retry_after_s)
    # Not as keyword arguments: the peer chooses the keys.
    typed.metadata = dict(details.metadata)
    typed.violations = details.violations
    return typed


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def to_status(error: RouseError) -> bytes:
    """The error as a serialised google.rpc.Status."""
    return encode_details(error.code.value[0], error.message, error.details)


def from_status(value: bytes) -> RouseError:
    """The error that `to_status` wrote. Raises google.protobuf.message.DecodeError."""
    number, message, details = decode_status(value)
    code = _CODES.get(number, grpc.StatusCode.INTERNAL)
    cls = _BY_CODE.get(code, Internal)
    typed = cls(details.reason or code.name, message or code.name, retry_after_s=details.retry_after_s)
    typed.metadata = dict(details.metadata)
    typed.violations = details.violations
    return typed

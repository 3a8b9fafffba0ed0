"""google.rpc.Status details on a gRPC error: ErrorInfo, RetryInfo, QuotaFailure, written and read in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "rouse"
DETAILS_KEY = "grpc-status-details-bin"
# Message and details share gRPC's limit of 8 KiB on trailing metadata. The message travels twice: percent-encoded,
# where a byte outside of ASCII takes three, and within the details, in base64.
MAX_MESSAGE_COST = 3000
MAX_METADATA_BYTES = 300
MAX_METADATA_ENTRIES = 8


@dataclass(frozen=True)
class ErrorDetails:
    """What an error says beside its status code and message."""

    reason: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    # Quotas that a request broke: (whose, in words).
    violations: tuple[tuple[str, str], ...] = ()


def encode_details(code: int, message: str, details: ErrorDetails) -> bytes:
    """The value of the trailing metadata key ``grpc-status-details-bin``."""
    status = status_pb2.Status(code=code, message=shortened(message))
    info = error_details_pb2.ErrorInfo(reason=details.reason, domain=DOMAIN)
    for key, value in list(details.metadata.items())[:MAX_METADATA_ENTRIES]:
        info.metadata[key] = _cut(str(value), MAX_METADATA_BYTES)
    status.details.add().Pack(info)
    if details.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(details.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    if details.violations:
        failure = error_details_pb2.QuotaFailure()
        for subject, description in details.violations:
            failure.violations.add(
                subject=_cut(subject, MAX_METADATA_BYTES), description=_cut(description, MAX_METADATA_BYTES)
            )
        status.details.add().Pack(failure)
    encoded: bytes = status.SerializeToString()
    return encoded


def shortened(message: str) -> str:
    """A message as long as a header may hold, with … where it was cut."""
    cost = 0
    for index, character in enumerate(message):
        size = len(character.encode(errors="replace"))
        cost += 1 if size == 1 and character.isprintable() else 3 * size
        if cost > MAX_MESSAGE_COST:
            return message[:index] + "…"
    return message


def _cut(text: str, size_bytes: int) -> str:
    return text.encode(errors="replace")[:size_bytes].decode(errors="ignore")


def decode_details(error: grpc.RpcError) -> ErrorDetails:
    """Reads the details of a failed call; without any, the reason is the name of the status code."""
    code: grpc.StatusCode = error.code()
    plain = ErrorDetails(reason=code.name)
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        try:
            return _parse(value, plain.reason)
        except DecodeError:
            return plain
    return plain


def decode_status(value: bytes) -> tuple[int, str, ErrorDetails]:
    """Code, message and details of a serialised google.rpc.Status. Raises DecodeError."""
    status = status_pb2.Status.FromString(value)
    return status.code, status.message, _read(status, "")


def _parse(value: bytes, reason: str) -> ErrorDetails:
    """Details from their bytes, with `reason` where they name none. Raises DecodeError."""
    return _read(status_pb2.Status.FromString(value), reason)


def _read(status: status_pb2.Status, reason: str) -> ErrorDetails:
    metadata: dict[str, str] = {}
    retry_after_s = None
    violations: tuple[tuple[str, str], ...] = ()
    for detail in status.details:
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        quota = error_details_pb2.QuotaFailure()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        elif detail.Is(quota.DESCRIPTOR) and detail.Unpack(quota):
            violations = tuple((broken.subject, broken.description) for broken in quota.violations)
    return ErrorDetails(reason, metadata, retry_after_s, violations)

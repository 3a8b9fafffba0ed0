"""google.rpc.Status details on a gRPC error: ErrorInfo and RetryInfo, written and read in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "rouse"
DETAILS_KEY = "grpc-status-details-bin"
# Trailing metadata shares gRPC's 8 KiB limit on headers.
MAX_MESSAGE_CHARS = 2000
MAX_METADATA_CHARS = 300


@dataclass(frozen=True)
class ErrorDetails:
    """What an error says beside its status code and message."""

    reason: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None


def encode_details(code: int, message: str, details: ErrorDetails) -> bytes:
    """The value of the trailing metadata key ``grpc-status-details-bin``."""
    status = status_pb2.Status(code=code, message=message[:MAX_MESSAGE_CHARS])
    info = error_details_pb2.ErrorInfo(reason=details.reason, domain=DOMAIN)
    for key, value in details.metadata.items():
        info.metadata[key] = str(value)[:MAX_METADATA_CHARS]
    status.details.add().Pack(info)
    if details.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(details.retry_after_s * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    encoded: bytes = status.SerializeToString()
    return encoded


def decode_details(error: grpc.RpcError) -> ErrorDetails:
    """Reads the details of a failed call; without any, the reason is the name of the status code."""
    code: grpc.StatusCode = error.code()
    plain = ErrorDetails(reason=code.name)
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        status = status_pb2.Status()
        try:
            status.ParseFromString(value)
        except DecodeError:
            return plain
        reason, metadata, retry_after_s = plain.reason, {}, None
        for detail in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Is(retry.DESCRIPTOR) and detail.Unpack(retry):
                retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
        return ErrorDetails(reason, metadata, retry_after_s)
    return plain

"""gzip and deflate bodies: inflated within a bound, deflated where the client asks for it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from rouse_common.errors import InvalidArgument, Unimplemented
from rouse_gateway.http.errors import bad_request, too_large

# zlib's window bits: gzip's header, zlib's, none.
GZIP, ZLIB, RAW = 31, 15, -15
# Below it a compressed body is hardly smaller.
MIN_BYTES = 1024
# The fastest: what is waited for is the answer.
LEVEL = 1


def inflate(data: bytes, encoding: str, limit: int) -> bytes:
    """A body without its Content-Encoding.

    Never holds more than `limit` bytes and one more. Raises ResourceExhausted BODY_TOO_LARGE,
    InvalidArgument BAD_ENCODING, Unimplemented UNSUPPORTED_ENCODING.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return data
    if encoding in ("gzip", "x-gzip"):
        windows = GZIP
    elif encoding == "deflate":
        # The standard means zlib's format; some send the bare stream.
        windows = ZLIB if data[:1] and data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0 else RAW
    else:
        raise Unimplemented(
            "UNSUPPORTED_ENCODING",
            f"content-encoding {encoding[:40]} is not served; send gzip, deflate or identity",
            encoding=encoding[:40],
        )
    try:
        return _inflate(data, windows, limit)
    except zlib.error as error:
        raise _bad(encoding, str(error)) from None


def _inflate(data: bytes, windows: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while True:
        stream = zlib.decompressobj(windows)
        part = stream.decompress(data, left + 1)
        left -= len(part)
        if left < 0:
            raise too_large(limit)
        parts.append(part)
        if not stream.eof:
            raise _bad("", "the stream is cut off")
        data = stream.unused_data
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        if windows != GZIP or not part:  # empty members could go on for ever at no cost to the sender
            raise _bad("", f"{len(data)} bytes follow the end of the stream")


def _bad(encoding: str, text: str) -> InvalidArgument:
    return bad_request(f"the body cannot be inflated as its content-encoding {encoding} says: {text}", "BAD_ENCODING")


def accepted(headers: Mapping[bytes, bytes]) -> str:
    """The encoding that the client wants its answer in: gzip, deflate or, for none of them, "".

    Of two that it accepts alike, gzip.
    """
    value = headers.get(b"accept-encoding")
    if value is None:
        return ""
    best, chosen = 0.0, ""
    for entry in value.decode("latin-1").lower().split(","):
        name, _, parameters = entry.partition(";")
        name = name.strip()
        if name not in ("gzip", "deflate"):
            continue
        weight = _weight(parameters)
        if weight > best or (weight == best and weight > 0 and name == "gzip"):
            best, chosen = weight, name
    return chosen


def _weight(parameters: str) -> float:
    key, _, value = parameters.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def deflate(data: bytes, encoding: str) -> bytes:
    """A body compressed as gzip or deflate."""
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP if encoding == "gzip" else ZLIB)
    return stream.compress(data) + stream.flush()

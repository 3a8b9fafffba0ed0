"""How long a request may take, as its headers say."""

from __future__ import annotations

import math
import re

from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.messages import Request

REQUEST_TIMEOUT, GRPC_TIMEOUT = b"x-request-timeout", b"grpc-timeout"
SECONDS = re.compile(r"\s*(?P<number>\d{1,12}(\.\d{1,9})?)\s*(?P<unit>s|ms|us)?\s*", re.ASCII)
GRPC = re.compile(r"(?P<number>\d{1,8})(?P<unit>[HMSmun])", re.ASCII)
UNITS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def header_timeout(request: Request) -> float:
    """The shorter of x-request-timeout (seconds, or with a unit: 1.5s, 200ms, 500us) and grpc-timeout (as
    gRPC writes it: 200m), in seconds; infinity without any. Raises InvalidArgument BAD_TIMEOUT."""
    shortest = math.inf
    for name, pattern, units in ((REQUEST_TIMEOUT, SECONDS, UNITS), (GRPC_TIMEOUT, GRPC, GRPC_UNITS)):
        value = request.header(name)
        if value is None:
            continue
        found = pattern.fullmatch(value)
        if found is None:
            example = "1.5, 1.5s, 200ms or 500us" if name == REQUEST_TIMEOUT else "200m or 2S"
            raise bad_request(f"header {name.decode()}: {value[:40]!r}: want {example}", "BAD_TIMEOUT")
        seconds = float(found["number"]) * units[found["unit"]]
        shortest = min(shortest, seconds)
    return shortest

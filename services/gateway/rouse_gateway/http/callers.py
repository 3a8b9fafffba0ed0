"""Who asks, and how, as a request's headers say."""

from __future__ import annotations

import math

from rouse_gateway.access.caller import current
from rouse_gateway.http.errors import bad_request
from rouse_gateway.http.messages import Request
from rouse_gateway.http.timeouts import header_timeout
from rouse_gateway.oip.parameters import MAX_ID_LENGTH
from rouse_gateway.oip.requests import Caller

IDEMPOTENCY_HEADER = b"idempotency-key"


def caller_of(request: Request) -> Caller:
    """Raises InvalidArgument BAD_TIMEOUT, BAD_PARAMETER."""
    timeout_s = header_timeout(request)
    key = request.header(IDEMPOTENCY_HEADER) or ""
    if len(key) > MAX_ID_LENGTH:
        raise bad_request(
            f"header {IDEMPOTENCY_HEADER.decode()}: want at most {MAX_ID_LENGTH} characters", "BAD_PARAMETER"
        )
    tenant, weight = current().tenant, current().weight
    return Caller(tenant, weight, None if math.isinf(timeout_s) else timeout_s, key)

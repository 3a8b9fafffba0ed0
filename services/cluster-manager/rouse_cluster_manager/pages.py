"""Where the next page of the ledger begins, as a token that clients hand back."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime

from rouse_common.errors import InvalidArgument

MAX_CHARS = 2048

Last = tuple[datetime, str, str]


def write(last: Last) -> str:
    """The token of the page behind a row's hour, tenant and function."""
    hour, tenant, function = last
    return urlsafe_b64encode(json.dumps([hour.isoformat(), tenant, function]).encode()).decode()


def read(token: str) -> Last:
    """The last row of the page before. Raises InvalidArgument BAD_PAGE."""
    try:
        if len(token) > MAX_CHARS:
            raise ValueError(f"{len(token)} characters")
        hour, tenant, function = json.loads(urlsafe_b64decode(token.encode("ascii")))
        when = datetime.fromisoformat(hour)
        if when.tzinfo is None or not all(isinstance(name, str) and "\x00" not in name for name in (tenant, function)):
            raise ValueError("wrong parts")
        return when, tenant, function
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgument(
            "BAD_PAGE", f"page_token: {error}; want next_page_token of the answer before, or none for the first page"
        ) from error

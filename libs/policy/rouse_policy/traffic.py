"""Which version serves a request that names none: by the shares of the function's traffic.

The choice is a function of the request's id, so a repetition of a request lands on the version that the
first one had. Versions take their shares from the newest to the oldest: raising the share of a new version
leaves it the requests that it had, and moves only others to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

PARTS = 100


@dataclass(frozen=True)
class Share:
    """A version's number and its share of the requests that name none, in percent."""

    version: int
    percent: int


def choose(function: str, shares: Sequence[Share], request_id: str) -> int:
    """The number of the version for a request.

    Args:
        function: its name, so that one id falls differently for every function.
        shares: at least one, adding up to 100.
        request_id: the id that a repetition of the request has as well.
    """
    digest = hashlib.blake2b(f"{function}\x00{request_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    left = int.from_bytes(digest, "big") % PARTS
    ordered = sorted(shares, key=lambda share: share.version, reverse=True)
    for share in ordered:
        if left < share.percent:
            return share.version
        left -= share.percent
    return ordered[-1].version

"""What the native core answers where something cannot be done."""

from __future__ import annotations


class NativeError(Exception):
    """An error of the native core.

    Args:
        code: one of INVALID, NOT_FOUND, EXHAUSTED, REFUSED, MISMATCH, CANCELLED, DEADLINE, PEER_GONE, UNSUPPORTED,
            FAILED; native/include/rouse/base/status.h says what each means.
        text: what, where, and what to do.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text

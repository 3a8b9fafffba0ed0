"""Text from outside, made fit for a column."""

from __future__ import annotations

MAX_REASON_CHARS = 4000


def clean(words: str, limit: int = MAX_REASON_CHARS) -> str:
    """`words` cut to `limit` characters and without the NUL characters that PostgreSQL cannot hold."""
    return words[:limit].replace("\x00", "\N{REPLACEMENT CHARACTER}")

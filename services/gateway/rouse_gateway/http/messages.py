"""A request as handlers see it, and what they answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from rouse_contracts.wire import Buffer

Headers = Sequence[tuple[bytes, bytes]]
JSON = b"application/json"
BINARY = b"application/octet-stream"
EVENTS = b"text/event-stream"


@dataclass(frozen=True, slots=True)
class Request:
    """A request whose body has arrived and is inflated.

    Args:
        path: as it was asked for, unquoted.
        values: the parts of the path that name something, as {"model": "bert"}.
        headers: by lower-case name; of one given twice the last.
        body: whole.
    """

    method: str
    path: str
    values: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer whose body is known.

    Args:
        parts: the body in pieces, so that tensors need not be copied.
        headers: beside content-type and content-length.
        compressible: whether it is compressed for clients that accept it. Inferences alone are, as Triton has it:
            its asynchronous client accepts gzip for all answers and inflates none but these.
    """

    parts: Sequence[Buffer]
    status: int = 200
    content_type: bytes = JSON
    headers: Headers = ()
    compressible: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is written as it comes; each item is a piece of the body."""

    items: AsyncGenerator[bytes, None]
    content_type: bytes = EVENTS

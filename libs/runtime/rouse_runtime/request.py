"""What a function may know of the request that it serves, beside the tensors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rouse_contracts.functions import RequestOptions

Value = bool | int | float | str


@dataclass(frozen=True)
class Sequence:
    """A request's place in a sequence: `start` and `end` mark its first and last request."""

    id: str
    start: bool
    end: bool


class Request:
    """Given to `predict(self, inputs, request)`. Reading is all that may be done with it.

    Attributes:
        id: as the caller, or the gateway, named the request.
        parameters: the caller's parameters by name.
        priority: 1 is the highest; 0 where the caller gave none.
        sequence: the request's place in a sequence; None outside of any.
        deadline: when the caller stops waiting, in seconds of `time.monotonic()`.
    """

    def __init__(self, request_id: str, options: RequestOptions | None, left_s: float) -> None:
        self.id = request_id
        self.deadline = time.monotonic() + left_s
        self._options = options
        self._cancelled = False

    @property
    def parameters(self) -> Mapping[str, Value]:
        entries = self._options.parameters.items() if self._options else ()
        return MappingProxyType({name: _value(entry) for name, entry in entries})

    @property
    def priority(self) -> int:
        return self._options.priority if self._options else 0

    @property
    def sequence(self) -> Sequence | None:
        if self._options is None or not self._options.HasField("sequence"):
            return None
        found = self._options.sequence
        return Sequence(found.id, found.start, found.end)

    @property
    def time_left_s(self) -> float:
        """Seconds until the deadline, 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._cancelled

    def cancel(self) -> None:
        """For Rouse: the caller is gone."""
        self._cancelled = True


def _value(entry: object) -> Value:
    kind = entry.WhichOneof("value")  # type: ignore[attr-defined]
    value: Value = getattr(entry, kind) if kind else ""
    return value

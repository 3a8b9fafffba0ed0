"""Which requests are traced: at the mesh's door its settings say, behind it each service does as its caller does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

UNLIMITED = -1


@dataclass(frozen=True)
class SamplingSettings:
    """What is traced of requests that enter here.

    Args:
        on: whether any are.
        rate: one request of so many is.
        count: so many more are, then none; -1: no limit.
    """

    on: bool = True
    rate: int = 1
    count: int = UNLIMITED


class RequestSampler(Sampler):
    """Samples server spans of `names` by the settings, which may change at any time, and all else by its parent."""

    def __init__(self) -> None:
        self._otherwise = ParentBased(ALWAYS_ON)
        self._settings = SamplingSettings()
        self._names: frozenset[str] = frozenset()
        self._seen = 0
        self._left = UNLIMITED

    @property
    def settings(self) -> SamplingSettings:
        """As they are now; `count` is what is left of it."""
        return SamplingSettings(self._settings.on, self._settings.rate, self._left)

    def apply(self, settings: SamplingSettings, names: frozenset[str]) -> None:
        """Takes settings into use, for server spans of these names."""
        self._settings, self._names = settings, names
        self._seen, self._left = 0, settings.count

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        chosen: Sampler = self._otherwise
        if kind is SpanKind.SERVER and name in self._names:
            chosen = self._otherwise if self._takes() else ALWAYS_OFF
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def _takes(self) -> bool:
        if not self._settings.on or not self._left:
            return False
        self._seen += 1
        if self._seen % self._settings.rate:
            return False
        if self._left > 0:
            self._left -= 1
        return True

    def get_description(self) -> str:
        return "RequestSampler"


REQUESTS = RequestSampler()

"""Which requests are traced: at the mesh's door its settings say, behind it each service does as its caller does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

UNLIMITED = -1
# A burst of requests may be traced of so many seconds' worth of the limit.
SAVED_S = 10.0


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

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._otherwise = ParentBased(ALWAYS_ON)
        self._settings = SamplingSettings()
        self._names: frozenset[str] = frozenset()
        self._seen = 0
        self._left = UNLIMITED
        self._per_s = 0.0
        self._saved = self._most = self._saved_at = 0.0

    @property
    def settings(self) -> SamplingSettings:
        """As they are now; `count` is what is left of it."""
        return SamplingSettings(self._settings.on, self._settings.rate, self._left)

    def apply(self, settings: SamplingSettings, names: frozenset[str]) -> None:
        """Takes settings into use, for server spans of these names."""
        self._settings, self._names = settings, names
        self._seen, self._left = 0, settings.count

    def limit(self, per_s: float) -> None:
        """From now on so many requests a second are sampled at most, 0: any number; SAVED_S seconds' worth is saved
        up, so that whoever tries things by hand finds every trace. Those whose callers trace them themselves are not
        counted."""
        self._per_s, self._saved_at = per_s, self._now()
        self._saved = self._most = max(1.0, per_s * SAVED_S)

    def drops(self, name: str, kind: SpanKind, *, asked: bool) -> bool:
        """Whether such a span is not to be sampled, and counted as that; where it is, `should_sample` counts it. That
        spares making a span only to learn that there is none.

        Args:
            asked: whether its caller traces it.
        """
        if kind is not SpanKind.SERVER or name not in self._names:
            return False
        if not self._settings.on or not self._left:
            return True
        if not (self._seen + 1) % self._settings.rate and (asked or self._saves()):
            return False
        self._seen += 1
        return True

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
            asked = trace.get_current_span(parent_context).get_span_context().is_valid
            chosen = self._otherwise if self._takes(asked) else ALWAYS_OFF
        return chosen.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def _takes(self, asked: bool) -> bool:
        if not self._settings.on or not self._left:
            return False
        self._seen += 1
        if self._seen % self._settings.rate or not (asked or self._affords()):
            return False
        if self._left > 0:
            self._left -= 1
        return True

    def _affords(self) -> bool:
        if not self._saves():
            return False
        if self._per_s:
            self._saved -= 1.0
        return True

    def _saves(self) -> bool:
        """Whether the limit allows one more now."""
        if not self._per_s:
            return True
        now = self._now()
        self._saved = min(self._most, self._saved + (now - self._saved_at) * self._per_s)
        self._saved_at = now
        return self._saved >= 1.0

    def get_description(self) -> str:
        return "RequestSampler"


REQUESTS = RequestSampler()

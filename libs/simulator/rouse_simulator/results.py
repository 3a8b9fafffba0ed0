"""What became of the requests, and what the devices did."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass
class FunctionResult:
    """A function's requests that arrived while it was measured.

    Attributes:
        model: name of its model.
        deadline_s: within which each was to be answered.
        arrived: how many came, ended or not, other than those whose deadline lies behind the end of the run.
        latencies_s: of those that were answered.
    """

    model: str
    deadline_s: float
    arrived: int = 0
    latencies_s: array[float] = field(default_factory=lambda: array("f"))
    in_time: int = 0

    def compliant(self, percentile: float) -> bool:
        """Whether it kept its objective; one that was never called did."""
        return self.in_time >= percentile * self.arrived - 1e-9

    def tail_s(self, percentile: float) -> float:
        """The percentile of its latencies, of what was never answered infinite; 0 where nothing came."""
        missing = self.arrived - len(self.latencies_s)
        if not self.arrived:
            return 0.0
        ordered = np.sort(np.asarray(self.latencies_s))
        place = int(np.ceil(percentile * self.arrived)) - 1
        return float(ordered[place]) if place < self.arrived - missing else float("inf")


@dataclass
class DeviceResult:
    """A device's work; seconds and counts while it was measured.

    Attributes:
        busy_s: with a request on it.
        served: requests.
        latencies_s: of those.
    """

    node: str
    name: str
    busy_s: float = 0.0
    served: int = 0
    swaps_host: int = 0
    swaps_link: int = 0
    evictions: int = 0
    latencies_s: array[float] = field(default_factory=lambda: array("f"))


@dataclass
class Results:
    """A run's outcome. `seconds` is how long was measured, `started` how many functions ever got a request answered."""

    functions: list[FunctionResult]
    devices: list[DeviceResult]
    seconds: float

    def compliant(self, percentile: float = 0.98) -> int:
        """Functions that kept their objective."""
        return sum(f.compliant(percentile) for f in self.functions)

    def compliant_share(self, percentile: float = 0.98) -> float:
        return self.compliant(percentile) / len(self.functions)

    def executed(self) -> int:
        """Functions of which at least one request was answered."""
        return sum(bool(len(f.latencies_s)) for f in self.functions)

    def answered(self) -> int:
        return sum(len(f.latencies_s) for f in self.functions)

    def arrived(self) -> int:
        return sum(f.arrived for f in self.functions)

    def swaps(self) -> tuple[int, int]:
        """Swaps from the host, and from another device."""
        return sum(d.swaps_host for d in self.devices), sum(d.swaps_link for d in self.devices)

    def utilisation(self) -> float:
        """The part of the time that devices had a request, on average."""
        return sum(d.busy_s for d in self.devices) / (self.seconds * len(self.devices))

    def over_deadline(self, quantiles: Sequence[float]) -> list[float]:
        """Quantiles of latency over deadline, over all requests; of what was not answered it is infinite."""
        return self._quantiles(quantiles, [np.asarray(f.latencies_s) / f.deadline_s for f in self.functions])

    def latency_s(self, quantiles: Sequence[float]) -> list[float]:
        """Quantiles of latency over all requests; of what was not answered it is infinite."""
        return self._quantiles(quantiles, [np.asarray(f.latencies_s) for f in self.functions])

    def _quantiles(self, quantiles: Sequence[float], parts: list[npt.NDArray[np.float64]]) -> list[float]:
        missing = self.arrived() - self.answered()
        found = np.concatenate([*parts, np.full(missing, np.inf)])
        if not len(found):
            return [0.0 for _ in quantiles]
        # No interpolation: there is none between a number and infinity.
        return [float(value) for value in np.quantile(found, quantiles, method="higher")]

"""When requests arrive: drawn from rates, or from a trace's counts a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MINUTE_S = 60.0


@dataclass(frozen=True)
class Arrivals:
    """Requests in the order of their time.

    Args:
        times: [requests] float64, seconds, ascending.
        functions: [requests] int32, which function each is for, 0 up to `count`.
        count: how many functions there are, whether or not each has requests.
    """

    times: npt.NDArray[np.float64]
    functions: npt.NDArray[np.int32]
    count: int

    def __len__(self) -> int:
        return len(self.times)


def _ordered(times: Sequence[npt.NDArray[np.float64]], count: int) -> Arrivals:
    joined = np.concatenate(times) if times else np.zeros(0)
    functions = np.repeat(np.arange(count, dtype=np.int32), [len(part) for part in times])
    # Stable: equal times stay in the order of the functions' numbers.
    order = np.argsort(joined, kind="stable")
    return Arrivals(joined[order], functions[order], count)


def poisson(rates_per_minute: Sequence[float], seconds: float, seed: int) -> Arrivals:
    """Independent Poisson arrivals, a rate a function."""
    random = np.random.default_rng(seed)
    parts = []
    for rate in rates_per_minute:
        number = random.poisson(rate * seconds / MINUTE_S)
        parts.append(np.sort(random.uniform(0.0, seconds, number)))
    return _ordered(parts, len(rates_per_minute))


def counted(minutes: Sequence[Sequence[int]], seed: int) -> Arrivals:
    """Arrivals of a trace that counts them: each minute's at independent uniform times within it.

    Args:
        minutes: a function's counts, minute by minute, for each function.
    """
    random = np.random.default_rng(seed)
    parts = []
    for counts in minutes:
        starts = np.repeat(np.arange(len(counts)) * MINUTE_S, counts)
        parts.append(np.sort(starts + random.uniform(0.0, MINUTE_S, len(starts))))
    return _ordered(parts, len(minutes))


def paced(minutes: Sequence[Sequence[float]], seed: int) -> Arrivals:
    """Arrivals as the authors of Torpor sent theirs (`sender_from_trace.py` of github.com/FCSLab/torpor): one stream.

    The pauses between a minute's requests are whole milliseconds, Poisson distributed around the minute over their
    number; whose request it is, is drawn by the functions' counts. So all together come far more evenly than Poisson
    arrivals (a pause varies by the root of its milliseconds, not by all of them), and each function's are close to
    those.

    Args:
        minutes: a function's counts or rates, minute by minute, for each function; at least one function.
    """
    random = np.random.default_rng(seed)
    now, times, functions = 0.0, [np.zeros(0)], [np.zeros(0, dtype=np.int32)]
    for rates in np.asarray(minutes, dtype=np.float64).T:
        total = int(rates.sum())
        if not total:
            now += MINUTE_S
            continue
        came = now + np.cumsum(random.poisson(MINUTE_S * 1000 / total, total) / 1000)
        times.append(came)
        functions.append(random.choice(len(rates), total, p=rates / rates.sum()).astype(np.int32))
        now = float(came[-1])
    return Arrivals(np.concatenate(times), np.concatenate(functions), len(minutes))


def gaps(arrivals: Arrivals) -> list[list[float]]:
    """Of each function the pauses between its requests, seconds."""
    order = np.argsort(arrivals.functions, kind="stable")
    ends = np.searchsorted(arrivals.functions[order], np.arange(1, arrivals.count))
    return [np.diff(times).tolist() for times in np.split(arrivals.times[order], ends)]


def uniform_rates(count: int, low: float, high: float, seed: int) -> list[float]:
    """Rates drawn evenly between two bounds, requests a minute."""
    return [float(rate) for rate in np.random.default_rng(seed).uniform(low, high, count)]


def power_law_rates(count: int, low: float, high: float, exponent: float, seed: int) -> list[float]:
    """Rates between two bounds whose density falls with rate ** -exponent (not 1), requests a minute."""
    power = 1.0 - exponent
    drawn = np.random.default_rng(seed).uniform(0.0, 1.0, count)
    return [float(rate) for rate in (low**power + drawn * (high**power - low**power)) ** (1.0 / power)]

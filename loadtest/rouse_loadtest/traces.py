"""Recorded arrivals (loadtest/traces), and functions that play parts of them."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import numpy.typing as npt

from rouse_loadtest.report import ROOT
from rouse_simulator import arrivals
from rouse_simulator.arrivals import MINUTE_S, Arrivals

TRACES = ROOT / "loadtest" / "traces"
AZURE = TRACES / "azure_functions_2019_1350fn_1day_invocations.csv.gz"


def torpor_minutes() -> npt.NDArray[np.int64]:
    """Requests a minute of the functions that Torpor's authors played: [203, 31]. The last minute was cut off."""
    return np.loadtxt(TRACES / "torpor_samples.csv", dtype=np.int64, delimiter=",", skiprows=1)[:, 1:]


def torpor_rates() -> npt.NDArray[np.float64]:
    """Requests a minute of the functions that they drew their busy ones from: [1336]."""
    return np.loadtxt(TRACES / "torpor_rates.csv", skiprows=1)


def azure_minutes() -> npt.NDArray[np.int64]:
    """Invocations a minute: [functions, 1440]."""
    with gzip.open(AZURE, "rt", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return np.array([[int(cell) for cell in row[1:]] for row in rows])


def windows(count: int, minutes: int, low: float, high: float, seed: int) -> list[list[int]]:
    """Counts a minute for `count` functions: windows of the trace whose mean rate lies between two bounds.

    Each function of the trace is drawn as often as any other that has such a window, and then one of its windows: so
    the many windows of one busy timer do not drown the rest.

    Args:
        minutes: length of a window.
        low, high: bounds of its mean, requests a minute.
    """
    trace = azure_minutes()
    parts = trace[:, : trace.shape[1] // minutes * minutes].reshape(len(trace), -1, minutes)
    means = parts.mean(axis=2)
    fitting = (means >= low) & (means <= high)
    functions = np.flatnonzero(fitting.any(axis=1))
    random = np.random.default_rng(seed)
    chosen = []
    for function in random.choice(functions, count):
        window = random.choice(np.flatnonzero(fitting[function]))
        chosen.append([int(n) for n in parts[function, window]])
    return chosen


def sped_up(count: int, seconds: float, rate: float, seed: int, minutes: int = 30, low: float = 1.0) -> Arrivals:
    """Arrivals for `count` functions out of windows of Azure's trace, played faster so that all of them together are
    `rate` a second over `seconds`: its beginning, as long as it takes to have so many, and time shortened evenly.

    Args:
        minutes: length of the windows.
        low: least mean rate of a window in the trace, requests a minute; the greatest is sixty times that.

    Raises ValueError where the windows have fewer requests.
    """
    whole = arrivals.counted(windows(count, minutes, low, 60 * low, seed), seed)
    number = round(rate * seconds)
    if len(whole) <= number:
        raise ValueError(
            f"{count} functions have {len(whole)} requests within {minutes} minutes; {number} are wanted: "
            "take longer windows, or busier ones"
        )
    # The one after the last ends the stretch: it has exactly so many requests.
    stretch_s = float(whole.times[number])
    assert 0 < stretch_s <= minutes * MINUTE_S
    return Arrivals(whole.times[:number] * (seconds / stretch_s), whole.functions[:number], count)

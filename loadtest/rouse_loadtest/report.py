"""What a scenario measured: as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Measure:
    """One figure.

    Args:
        name: stable, as "throughput_over.ray".
        values: one a round; the figure is their median, their range its spread.
        unit: as "ratio", "ms", "1/s".
        bar: what it has to reach; None: it is only shown.
        better: "lower" or "higher".
        note: what it was compared with.
    """

    name: str
    values: Sequence[float]
    unit: str
    bar: float | None = None
    better: str = "lower"
    note: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.values)

    @property
    def holds(self) -> bool:
        if self.bar is None:
            return True
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar

    def row(self) -> dict[str, object]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "bar": self.bar,
            "better": self.better,
            "holds": self.holds,
            "spread": [min(self.values), max(self.values)],
            "rounds": len(self.values),
            "values": list(self.values),
            "note": self.note,
        }


def environment() -> dict[str, object]:
    """The machine that measured."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def commit() -> str:
    """The commit measured, with + where files differ from it; empty outside of a checkout."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """A plain table; columns after the first are aligned right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def markdown(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """The same as a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines) + "\n"


def figure(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


MEASURE_HEADER = ("measure", "median", "unit", "spread", "bar", "")


def measure_rows(measures: Sequence[Measure]) -> list[list[str]]:
    """For a table with MEASURE_HEADER."""
    rows = []
    for m in measures:
        bar = "" if m.bar is None else f"{'≤' if m.better == 'lower' else '≥'} {figure(m.bar)}"
        verdict = "" if m.bar is None else "holds" if m.holds else "DOES NOT HOLD"
        spread = f"{figure(min(m.values))} … {figure(max(m.values))}"
        rows.append([m.name, figure(m.value), m.unit, spread, bar, verdict])
    return rows


def measures_table(measures: Sequence[Measure]) -> str:
    return table(measure_rows(measures), MEASURE_HEADER)


def write(path: Path, scenario: str, measures: Sequence[Measure], where: dict[str, object]) -> None:
    """Writes the JSON object of one run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"scenario": scenario, "commit": commit(), "environment": where, "measures": [m.row() for m in measures]}
    path.write_text(json.dumps(result, indent=2) + "\n")


def read(path: Path) -> tuple[list[Measure], dict[str, object]]:
    """What `write` wrote: the measures, and where they were taken. Raises ValueError, KeyError for another file."""
    result = json.loads(path.read_text())
    rows = result["measures"]
    measures = [Measure(m["name"], m["values"], m["unit"], m["bar"], m["better"], m["note"]) for m in rows]
    return measures, result["environment"]

"""What the demo shows: steps, tables, the device's timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import rouse
from rouse.cli import text

WIDTH = 100
STYLES = {"digits": "green", "resnet50": "cyan", "bert": "magenta"}
SWAP, EXECUTE = "▒", "█"


@dataclass
class Measured:
    """Requests of one function as its callers saw them, and what the mesh counted."""

    name: str
    latencies_ms: list[float] = field(default_factory=list)
    trace_ids: list[str] = field(default_factory=list)
    started_unix_s: list[float] = field(default_factory=list)
    weights_bytes: int = 0
    usage: rouse.Usage | None = None

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Screen:
    """The terminal, 100 columns wide at most."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.console.width = min(WIDTH, self.console.width) if self.console.is_terminal else WIDTH
        self.began = time.monotonic()

    def headline(self, words: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{words}[/bold]", align="left", style="dim")

    def say(self, markup: str) -> None:
        self.console.print(markup)

    def show(self, thing: object) -> None:
        self.console.print(thing)

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """A line that turns while the block runs, then says how long it took and what the block appended."""
        notes: list[str] = []
        started = time.monotonic()
        with self.console.status(title):
            yield notes
        took = text.milliseconds((time.monotonic() - started) * 1000)
        self.say(f"[green]✓[/green] {title} [dim]{took}[/dim]{'  ' if notes else ''}{'; '.join(notes)}")

    def bars(self, *, transient: bool = False) -> Progress:
        """Progress bars, which stay on the screen unless they are transient."""
        return Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}"),
            BarColumn(30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=transient,
            # Elsewhere than on a terminal, what is transient would only leave blank lines.
            disable=transient and not self.console.is_terminal,
        )


def deployed(done: rouse.Deployment) -> str:
    """One line about a deployment."""
    return (
        f"[green]✓[/green] [bold]{done.function:<9}[/bold] {text.size(done.version.weights_bytes):>8} of weights  "
        f"[dim]hashed {text.milliseconds(done.hash_ms):>7}, sent {text.milliseconds(done.upload_ms):>7}, "
        f"loaded {text.milliseconds(done.wake_ms):>7}[/dim]"
    )


def results(measured: Sequence[Measured]) -> Table:
    """A row a function: what callers measured, what the mesh counted."""
    table = text.table("!function", ">requests", ">p50", ">p95", ">p99", ">swap-ins", ">mean swap", ">device")
    for function in measured:
        usage = function.usage
        assert usage is not None
        table.add_row(
            f"[{STYLES[function.name]}]{function.name}[/]",
            str(len(function.latencies_ms)),
            *(text.milliseconds(function.percentile(share)) for share in (0.5, 0.95, 0.99)),
            str(usage.swap_ins),
            text.milliseconds(usage.swap_ms / usage.swap_ins) if usage.swap_ins else "-",
            text.milliseconds(usage.device_ms),
        )
    return table


def timeline(spans: dict[str, list[rouse.Span]], width: int) -> list[Text]:
    """What the device did over time: a row a function, swapping and executing.

    Args:
        spans: `swap` and `execute` spans by function.
        width: of the terminal, columns.
    """
    whole = [span for found in spans.values() for span in found]
    start, end = min(s.start_unix_nanos for s in whole), max(s.end_unix_nanos for s in whole)
    cells = width - 11
    step = max(1, (end - start) / cells)
    lines = []
    for name, found in spans.items():
        row = [" "] * cells
        for span in sorted(found, key=lambda s: s.name == "execute"):
            first = min(cells - 1, int((span.start_unix_nanos - start) / step))
            last = min(cells - 1, int((span.end_unix_nanos - start) / step))
            row[first : last + 1] = [EXECUTE if span.name == "execute" else SWAP] * (last - first + 1)
        lines.append(Text.assemble((f"{name:<11}", STYLES[name]), ("".join(row), STYLES[name])))
    scale = f"0 s{f'{(end - start) / 1e9:.2f} s':>{cells - 3}}"
    return [*lines, Text.assemble(" " * 11, (scale, "dim"))]


def residency(described: Sequence[rouse.Description]) -> Table:
    """Where the weights are now, and why."""
    table = text.table("!function", "!state", "!on", ">size", "why")
    for found in described:
        for place in found.residency:
            name = found.function.name
            table.add_row(
                f"[{STYLES[name]}]{name}[/]",
                text.state(place.state),
                place.device or "-",
                text.size(place.size_bytes),
                escape(place.reason),
            )
    return table

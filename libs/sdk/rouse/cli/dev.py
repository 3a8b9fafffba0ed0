"""rouse dev."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

import rouse
from rouse.cli import failures, inputs, text
from rouse.cli.calling import listed, show_outputs
from rouse.cli.dev_process import DevFunction, Ended
from rouse.cli.state import State, common, pass_state
from rouse.deploying import Overrides

LOOK_S = 0.3
LOAD_TIMEOUT_S = 120.0
MAX_LINE_BYTES = 1 << 20


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--input", "given", multiple=True, metavar="NAME=VALUE", help="As `rouse infer` takes it; called at every reload."
)
@click.option("--random", "drawn", is_flag=True, help="Draw the inputs not given from the function's signature.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --random.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Unknown first size of --random.")
@click.option("--dim", "dims", multiple=True, metavar="N|NAME.AXIS=N", help="Other unknown sizes of --random, else 16.")
@click.option("--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the request.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Given to load(); may be repeated.")
@click.option("--once", is_flag=True, help="Call once and leave; exit code 1 where it fails.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, metavar="SECONDS")
@common
@pass_state
def dev(
    state: State,
    folder: Path,
    given: tuple[str, ...],
    drawn: bool,
    seed: int,
    batch: int,
    dims: tuple[str, ...],
    parameters: tuple[str, ...],
    options: tuple[str, ...],
    once: bool,
    timeout: float,
) -> None:
    """Run FOLDER as a function on the spot, without a mesh, and load it again when a file of it changes.

    Lines on standard input call it as well: NAME=VALUE words as --input takes them, an empty line for the last call
    once more.
    """
    call = Call(list(given), inputs.Drawing(drawn, seed, batch, dims), _parameters(parameters), timeout)
    overrides = Overrides(options=dict(_pair(entry, "--option") for entry in options))
    # A terminal that is closed, or who ends this process, leaves neither the function's process nor its files.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="rouse-dev-") as work:
        session = Session(state, folder, overrides, call, Path(work))
        try:
            worked = session.reload()
            if once:
                sys.exit(0 if worked else failures.FAILED)
            session.watch()
        finally:
            session.close()


@dataclass
class Call:
    """What is called at every reload; nothing where neither inputs are given nor any are to be drawn."""

    given: list[str]
    drawing: inputs.Drawing
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 60.0

    @property
    def wanted(self) -> bool:
        return bool(self.given) or self.drawing.wanted


class Session:
    """One function, loaded again and again."""

    def __init__(self, state: State, folder: Path, overrides: Overrides, call: Call, work: Path) -> None:
        self._state, self._folder, self._overrides = state, folder, overrides
        self._call, self._work = call, work
        self._function: DevFunction | None = None
        self._seen: dict[str, tuple[int, int]] = {}

    def reload(self) -> bool:
        """Loads the folder as it is now, and calls it; whether all of that worked."""
        self.close()
        self._seen = _snapshot(self._folder)
        started = time.monotonic()
        try:
            package = rouse.read_package(self._folder)
            for what in package.ignored:
                self._tell(f"ignored: {what}")
            self._function = function = DevFunction(package, self._overrides, self._work)
            error, load_ms = function.loaded(LOAD_TIMEOUT_S)
        except (rouse.RouseError, Ended) as failure:
            return self._failed(failure)
        if error:
            self.close()
            return self._failed(Ended(f"it did not load: {error}"))
        self._show_loaded(function, load_ms, (time.monotonic() - started) * 1000)
        return self.call() if self._call.wanted else True

    def call(self, given: Sequence[str] | None = None) -> bool:
        """Calls the function, with other inputs than the last time where any are given; whether that worked."""
        if given:
            self._call.given = list(given)
        if self._function is None:
            self._tell("it is not loaded; change a file to load it again")
            return False
        started = time.monotonic()
        try:
            values = inputs.gather(
                self._function.spec.name, self._call.given, self._function.inputs, self._call.drawing
            )
            for answer in self._function.call(values, self._call.parameters, self._call.timeout_s):
                self._show_answer(answer, (time.monotonic() - started) * 1000)
        except click.ClickException as mistake:
            failures.show_usage(self._state, mistake)
            return False
        except Ended as failure:
            self.close()
            return self._failed(failure)
        except rouse.RouseError as failure:
            return self._failed(failure)
        return True

    def watch(self) -> None:
        """Until interrupted: loads again when a file changes, calls when a line comes."""
        given = [sys.stdin.fileno()] if sys.stdin is not None and not sys.stdin.closed else []
        unread = b""
        self._tell(f"watching {self._folder}; NAME=VALUE calls it, Ctrl-C ends")
        while True:
            ready, _, _ = select.select(given, [], [], LOOK_S)
            if ready:
                data = os.read(given[0], MAX_LINE_BYTES)
                *lines, unread = (unread + data).split(b"\n")
                if not data or len(unread) > MAX_LINE_BYTES:
                    given = []
                for line in lines:
                    self._line(line.decode(errors="replace"))
            if _snapshot(self._folder) != self._seen:
                self._tell("changed, loading again")
                self.reload()

    def close(self) -> None:
        if self._function is not None:
            self._function.close()
            self._function = None

    def _line(self, line: str) -> None:
        try:
            words = shlex.split(line)
        except ValueError as error:
            self._tell(f"that line cannot be read: {error}")
            return
        self.call(words)

    def _failed(self, failure: Exception) -> bool:
        if isinstance(failure, rouse.RouseError):
            failures.show(self._state, failure)
        else:
            failures.say(self._state, str(failure), "correct it, and it is loaded again; what it printed is above")
        return False

    def _tell(self, line: str) -> None:
        self._state.err.print(line, markup=False, soft_wrap=True, style="dim")

    def _show_loaded(self, function: DevFunction, load_ms: float, total_ms: float) -> None:
        if self._state.json:
            tensors = {"inputs": function.inputs, "outputs": function.outputs}
            self._state.emit({"loaded": function.spec.name, "load_ms": load_ms, **tensors})
            return
        self._state.say(
            f"[bold green]✓[/bold green] [bold]{escape(function.spec.name)}[/bold] loaded in "
            f"{text.milliseconds(load_ms)} [dim](with its process {text.milliseconds(total_ms)})[/dim]"
        )
        for kind, specs in (("in ", function.inputs), ("out", function.outputs)):
            for spec in specs:
                self._state.say(f"  [dim]{kind}[/dim] {escape(f'{spec.name} {spec.datatype}{list(spec.shape)}')}")

    def _show_answer(self, answer: Any, total_ms: float) -> None:
        times = {"device_ms": answer.device_ms, "input_ms": answer.input_ms, "output_ms": answer.output_ms}
        if self._state.json:
            self._state.emit({"outputs": listed(answer.outputs), "timings": {**times, "total_ms": total_ms}})
            return
        show_outputs(self._state, answer.outputs)
        if answer.device_ms:
            steps = ", ".join(f"{key.removesuffix('_ms')} {text.milliseconds(value)}" for key, value in times.items())
            self._state.say(f"[bold green]✓[/bold green] {text.milliseconds(total_ms)} [dim]({steps})[/dim]")


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file that would be deployed changed last, and its size; empty where the folder is gone."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if any(part.startswith(".") or part == "__pycache__" for part in inside):
            continue
        try:
            state = path.stat()
        except OSError:
            continue  # it went away meanwhile
        found[str(path)] = (state.st_mtime_ns, state.st_size)
    return found


def _parameters(entries: Sequence[str]) -> dict[str, Any]:
    """Values as JSON has them; anything else is a text."""
    found: dict[str, Any] = {}
    for name, value in (_pair(entry, "--parameter") for entry in entries):
        try:
            read = json.loads(value)
        except ValueError:
            read = value
        found[name] = read if isinstance(read, bool | int | float | str) else value
    return found


def _pair(entry: str, option: str) -> tuple[str, str]:
    key, separator, value = entry.partition("=")
    if not separator or not key:
        raise click.BadParameter(f"'{entry}' is not NAME=VALUE", param_hint=option)
    return key, value

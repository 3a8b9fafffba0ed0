"""What every command shares: options, consoles, the client, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import click
import numpy as np
from rich.console import Console

import rouse

F = TypeVar("F", bound=Callable[..., Any])
READ_TIMEOUT_S = 15.0
PIPE_WIDTH = 120


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


@dataclass
class State:
    """One run of the command line."""

    address: str | None = None
    ca: str | None = None
    json: bool = False
    out: Console = field(default_factory=lambda: _console(False))
    err: Console = field(default_factory=lambda: _console(True))

    def client(self, timeout: float = READ_TIMEOUT_S) -> rouse.Client:
        return rouse.Client(self.address, timeout=timeout, ca=self.ca)

    def say(self, markup: str) -> None:
        """Prints a line to standard output, never broken."""
        self.out.print(markup, soft_wrap=True)

    def done(self, payload: Any, words: str) -> None:
        """Says what a command changed: `payload` as JSON where that was asked for, else a line of markup."""
        if self.json:
            self.emit(payload)
        else:
            self.say(f"[bold green]✓[/bold green] {words}")

    def emit(self, payload: Any) -> None:
        """Prints one JSON document to standard output."""
        click.echo(json.dumps(plain(payload), allow_nan=False, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value as JSON takes it: dataclasses as objects, times as ISO 8601, what is not finite as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def common(command: F) -> F:
    """Adds --address and --json, which may stand before or after the command's name."""

    def keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
        def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
            if value:
                setattr(context.ensure_object(State), name, value)

        return callback

    command = click.option(
        "--json", is_flag=True, expose_value=False, callback=keep("json"), help="One JSON document on standard output."
    )(command)
    command = click.option(
        "--ca",
        metavar="FILE",
        expose_value=False,
        callback=keep("ca"),
        help="PEM file of the authority that the gateway has to prove; else ROUSE_CA, that of the local mesh.",
    )(command)
    return click.option(
        "--address",
        metavar="HOST:PORT",
        expose_value=False,
        callback=keep("address"),
        help="The gateway; else ROUSE_ADDRESS, the running local mesh, localhost:8001.",
    )(command)


pass_state = click.make_pass_decorator(State)

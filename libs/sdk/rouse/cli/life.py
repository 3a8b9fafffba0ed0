"""rouse traffic | rollback | sleep | wake."""

from __future__ import annotations

import click
from rich.markup import escape

import rouse
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

WAKE_TIMEOUT_S = 300.0
SLEEP_TIMEOUT_S = 60.0


@click.command()
@click.argument("name")
@click.argument("shares", nargs=-1, metavar="[VERSION=PERCENT]...")
@click.option("--newest", is_flag=True, help="Give all requests to the newest version.")
@common
@pass_state
def traffic(state: State, name: str, shares: tuple[str, ...], newest: bool) -> None:
    """Share the requests for the function NAME between versions, as 1=90 2=10; without shares, show them."""
    if shares and newest:
        raise click.UsageError("give shares or --newest, not both")
    wanted = _shares(shares)
    with state.client() as client:
        changed = bool(wanted) or newest
        function = client.set_traffic(name, wanted) if changed else client.describe(name).function
    _show(state, function, changed)


@click.command()
@click.argument("name")
@common
@pass_state
def rollback(state: State, name: str) -> None:
    """Put the traffic of NAME back to what it was before the last deployment or change of it."""
    with state.client() as client:
        function = client.roll_back(name)
    _show(state, function, True)


@click.command()
@click.argument("name")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=SLEEP_TIMEOUT_S, metavar="SECONDS")
@common
@pass_state
def sleep(state: State, name: str, timeout: float) -> None:
    """Stop the instances of NAME above its min_instances, once what they execute has ended."""
    with state.client(timeout) as client:
        function = client.sleep(name)
    _stands(state, function)


@click.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(1), metavar="NUMBER", help="A version; else the active one.")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=WAKE_TIMEOUT_S, metavar="SECONDS")
@common
@pass_state
def wake(state: State, name: str, version: int | None, timeout: float) -> None:
    """Start an instance of NAME where there is none, and wait until one is ready."""
    with state.client(timeout) as client:
        function = client.wake(name, version=version)
    _stands(state, function)


def _shares(texts: tuple[str, ...]) -> dict[int, int]:
    shares: dict[int, int] = {}
    for given in texts:
        version, separator, percent = given.removesuffix("%").partition("=")
        if not (separator and version.isascii() and version.isdigit() and percent.isascii() and percent.isdigit()):
            raise click.BadParameter(f"'{given}' is not VERSION=PERCENT, as 2=10", param_hint="SHARES")
        if int(version) in shares:
            raise click.BadParameter(f"version {version} is named twice", param_hint="SHARES")
        if not 1 <= int(percent) <= 100 or int(version) >= 1 << 31:
            raise click.BadParameter(f"'{given}': want a version and 1 to 100 percent", param_hint="SHARES")
        shares[int(version)] = int(percent)
    return shares


def _show(state: State, function: rouse.Function, changed: bool) -> None:
    shares = ", ".join(f"{percent} % to version {version}" for version, percent in sorted(function.traffic.items()))
    words = f"[bold]{escape(function.name)}[/bold] {shares}"
    if changed:
        state.done(function, words)
    elif state.json:
        state.emit(function)
    else:
        state.say(words)


def _stands(state: State, function: rouse.Function) -> None:
    if state.json:
        state.emit(function)
        return
    instances = text.count(function.ready_instances, "ready instance")
    state.say(f"[bold]{escape(function.name)}[/bold] {text.state(function.state)}, {instances}")

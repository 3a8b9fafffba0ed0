"""rouse logs | trace."""

from __future__ import annotations

import re

import click
from rich.text import Text

from rouse.cli.state import READ_TIMEOUT_S, State, common, pass_state
from rouse.cli.waterfall import waterfall

LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red", "DEBUG": "dim"}
LEVEL = re.compile(r"^\S+ ([A-Z]+) ")


@click.command()
@click.argument("name", required=False, default="")
@click.option("-f", "--follow", is_flag=True, help="Keep printing lines as they come; Ctrl-C ends it.")
@click.option("--tail", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Lines from the end.")
@click.option("--service", default="", help="Only lines of this service, as gateway.")
@click.option("--instance", default="", metavar="ID", help="Only lines of this instance, as `rouse describe` names it.")
@click.option("--trace", "trace_id", default="", metavar="ID", help="Only lines of this trace.")
@common
@pass_state
def logs(state: State, name: str, follow: bool, tail: int, service: str, instance: str, trace_id: str) -> None:
    """Log lines of the function NAME, or of everything; oldest first."""
    with state.client() as client:
        lines = client.logs(
            name,
            service=service,
            instance=instance,
            trace_id=trace_id,
            tail=tail,
            follow=follow,
            timeout=None if follow else READ_TIMEOUT_S,
        )
        for line in lines:
            if state.json:
                state.emit({"line": line})
                continue
            match = LEVEL.match(line)
            style = LEVEL_STYLES.get(match[1], "") if match else ""
            if state.out.is_terminal:
                line = line.replace("\\n", "\n    ")
            # A line is not wrapped: what reads it next may be grep.
            state.out.print(Text(line, style=style), soft_wrap=True)


@click.command()
@click.argument("trace_id", metavar="ID")
@common
@pass_state
def trace(state: State, trace_id: str) -> None:
    """Where the time of one request went, as a waterfall; `rouse infer` prints the ID."""
    if not re.fullmatch(r"[0-9a-f]{32}", trace_id):
        raise click.BadParameter("want 32 hex digits, as `rouse infer` prints them", param_hint="ID")
    with state.client() as client:
        spans = client.trace(trace_id)
    if state.json:
        state.emit({"trace_id": trace_id, "spans": spans})
        return
    for line in waterfall(spans, state.out.width):
        state.out.print(line, no_wrap=True, overflow="ellipsis")

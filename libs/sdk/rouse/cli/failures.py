"""How a command fails: one line what happened, one line what to do next, an exit code."""

from __future__ import annotations

import json

import click
from rich.text import Text

import rouse
from rouse.cli.state import State

FAILED, USAGE, UNREACHABLE, NOT_FOUND, TIMEOUT, INTERRUPTED, CLOSED_PIPE = 1, 2, 3, 4, 5, 130, 141


def exit_code(error: rouse.RouseError) -> int:
    """1 failed, 3 the mesh is unreachable, 4 not found, 5 out of time."""
    if isinstance(error, rouse.Unreachable):
        return UNREACHABLE
    if isinstance(error, rouse.NotFound):
        return NOT_FOUND
    return TIMEOUT if isinstance(error, rouse.DeadlineExceeded) else FAILED


def show(state: State, error: rouse.RouseError) -> None:
    """Writes a RouseError to standard error; as a JSON object with --json."""
    if state.json:
        payload = {
            "code": error.code,
            "reason": error.reason,
            "message": error.message,
            "hint": error.hint,
            "metadata": error.metadata,
            "retry_after_s": error.retry_after_s,
        }
        click.echo(json.dumps({"error": payload}, ensure_ascii=False), err=True)
        return
    say(state, error.message, error.hint)
    trace = error.metadata.get("trace_id")
    if trace:
        state.err.print(Text.assemble(("trace: ", "dim"), f"rouse trace {trace}"), soft_wrap=True)


def show_usage(state: State, error: click.ClickException) -> None:
    """Writes a mistake in the command's words to standard error."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rouse"
    if state.json:
        payload = {"code": "USAGE", "reason": "USAGE", "message": error.format_message(), "hint": f"{command} --help"}
        click.echo(json.dumps({"error": payload}, ensure_ascii=False), err=True)
        return
    say(state, error.format_message(), f"see `{command} --help`")


def say(state: State, what: str, hint: str) -> None:
    state.err.print(Text.assemble(("error: ", "bold red"), (what, "red")), soft_wrap=True)
    state.err.print(Text.assemble(("next: ", "bold"), hint), soft_wrap=True)

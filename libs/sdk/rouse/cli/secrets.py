"""rouse secrets."""

from __future__ import annotations

import os
import sys

import click
from rich.markup import escape

from rouse.cli import text
from rouse.cli.state import State, common, pass_state

MAX_SECRET_BYTES = 64 << 10


@click.group()
def secrets() -> None:
    """Secrets of your tenant, for its functions."""


TENANT = click.option("--tenant", default="", metavar="NAME", help="Another tenant's (administrators).")


@secrets.command("list")
@TENANT
@common
@pass_state
def list_secrets(state: State, tenant: str) -> None:
    """Names of secrets; never their values."""
    with state.client() as client:
        found = client.access.secrets(tenant)
    if state.json:
        state.emit({"secrets": found})
        return
    if not found:
        state.say("no secrets yet; set one with `rouse secrets set NAME`, its value on standard input")
        return
    table = text.table("!secret", "!changed")
    for secret in found:
        table.add_row(escape(secret.name), text.ago(secret.changed_at))
    state.out.print(table)


@secrets.command("set")
@click.argument("name")
@click.option("--from-env", metavar="VARIABLE", help="Take the value from an environment variable.")
@TENANT
@common
@pass_state
def set_secret(state: State, name: str, from_env: str | None, tenant: str) -> None:
    """Keep a secret; its value comes from standard input, or is asked for."""
    with state.client() as client:
        client.access.set_secret(name, _value(from_env), tenant=tenant)
    state.done({"set": name}, f"secret [bold]{escape(name)}[/bold] is set; instances that start from now on get it")


def _value(from_env: str | None) -> str:
    """A secret's value; never from the command's words, which others on the machine can read."""
    if from_env is not None:
        value = os.environ.get(from_env, "")
        if not value:
            raise click.UsageError(f"the environment variable {from_env} is empty or not set")
        return value
    if sys.stdin.isatty():
        return str(click.prompt("value", hide_input=True, err=True))
    value = sys.stdin.read(MAX_SECRET_BYTES + 2)
    # What `echo` and editors put at the end of a line is not meant.
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise click.UsageError("there is no value on standard input")
    return value


@secrets.command("delete")
@click.argument("name")
@TENANT
@common
@pass_state
def delete_secret(state: State, name: str, tenant: str) -> None:
    """Delete a secret that no function refers to."""
    with state.client() as client:
        client.access.delete_secret(name, tenant=tenant)
    state.done({"deleted": name}, f"secret [bold]{escape(name)}[/bold] is deleted")

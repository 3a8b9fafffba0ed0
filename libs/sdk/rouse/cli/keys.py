"""rouse keys."""

from __future__ import annotations

import click
from rich.markup import escape

import rouse
from rouse.access import ROLES
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Period(click.ParamType):
    """A time as 30s, 15m, 24h or 90d; plain numbers are seconds."""

    name = "period"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        words = str(value)
        unit = UNITS_S.get(words[-1:])
        try:
            seconds = float(words[:-1]) * unit if unit else float(words)
        except ValueError:
            seconds = -1.0
        if not seconds >= 0 or seconds == float("inf"):
            self.fail(f"'{words}' is no time: want it as 30s, 15m, 24h or 90d", param, ctx)
        return seconds


@click.group()
def keys() -> None:
    """API keys: make, list, rotate, revoke (administrators)."""


@keys.command("list")
@click.option("--tenant", default="", metavar="NAME", help="Of one tenant; else of all.")
@common
@pass_state
def list_keys(state: State, tenant: str) -> None:
    """All keys; never their texts."""
    with state.client() as client:
        found = client.access.keys(tenant)
    if state.json:
        state.emit({"keys": found})
        return
    table = text.table("!key", "!tenant", "!role", "!made", "!state", "description")
    for key in found:
        standing = "[red]revoked[/red]" if key.revoked_at else f"until {key.expires_at:%Y-%m-%d %H:%M}" if (
            key.expires_at
        ) else "valid"  # fmt: skip
        table.add_row(
            key.key_id, escape(key.tenant), key.role, text.ago(key.created_at), standing, text.short(key.description)
        )
    state.out.print(table)


@keys.command("create")
@click.argument("tenant")
@click.option("--role", type=click.Choice(list(ROLES)), default="invoke", show_default=True)
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.option("--lifetime", type=Period(), metavar="TIME", help="As 24h or 90d; else it does not expire.")
@common
@pass_state
def create_key(state: State, tenant: str, role: str, description: str, lifetime: float | None) -> None:
    """Make a key and print it, this once."""
    with state.client() as client:
        made = client.access.create_key(tenant, role, description=description, lifetime_s=lifetime)
    _show(state, made)


@keys.command("rotate")
@click.argument("key_id")
@click.option("--grace", type=Period(), default=0.0, metavar="TIME", help="How long the old text holds (default: 0).")
@common
@pass_state
def rotate_key(state: State, key_id: str, grace: float) -> None:
    """Make a new text for a key and print it, this once."""
    with state.client() as client:
        made = client.access.rotate_key(key_id, grace_s=grace)
    _show(state, made)


def _show(state: State, made: rouse.NewKey) -> None:
    """The text on standard output, so that it can be put where it belongs; the rest on standard error."""
    if state.json:
        state.emit({"key": made.key, "text": made.text})
        return
    click.echo(made.text)
    state.err.print(
        f"key {made.key.key_id} of tenant {escape(made.key.tenant)}, role {made.key.role}; "
        "it is not shown again: keep it, as in ROUSE_API_KEY",
        soft_wrap=True,
    )


@keys.command("revoke")
@click.argument("key_id")
@common
@pass_state
def revoke_key(state: State, key_id: str) -> None:
    """Have a key refused from now on."""
    with state.client() as client:
        client.access.revoke_key(key_id)
    state.done({"revoked": key_id}, f"key [bold]{escape(key_id)}[/bold] is revoked")

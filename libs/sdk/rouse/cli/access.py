"""rouse tenants | keys | secrets."""

from __future__ import annotations

import os
import sys

import click
from rich.markup import escape

import rouse
from rouse.access import ROLES
from rouse.cli import text
from rouse.cli.state import State, common, pass_state

DAY_S = 86_400.0
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_S}
MAX_SECRET_BYTES = 64 << 10


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
def tenants() -> None:
    """Who owns functions and keys, and what each may use (administrators)."""


@tenants.command("list")
@common
@pass_state
def list_tenants(state: State) -> None:
    """All tenants and their quotas."""
    with state.client() as client:
        found = client.access.tenants()
    if state.json:
        state.emit({"tenants": found})
        return
    table = text.table("!tenant", ">requests/s", ">burst", ">at once", ">weight", "!made")
    for tenant in found:
        table.add_row(escape(tenant.name), *_quota(tenant), str(tenant.weight), text.ago(tenant.created_at))
    state.out.print(table)


def _quota(tenant: rouse.Tenant) -> tuple[str, str, str]:
    unlimited = "[dim]any[/dim]"
    rate, at_once = tenant.requests_per_second, tenant.max_concurrent_requests
    burst = str(tenant.burst) if tenant.burst else "[dim]as the rate[/dim]"
    return f"{rate:g}" if rate else unlimited, burst if rate else "", str(at_once) if at_once else unlimited


@tenants.command("set")
@click.argument("name")
@click.option("--rps", type=click.FloatRange(0), metavar="N", help="Requests a second; 0: any number.")
@click.option("--burst", type=click.IntRange(0), metavar="N", help="Requests at once; 0: a second's worth.")
@click.option("--max-concurrent", type=click.IntRange(0), metavar="N", help="Requests in flight; 0: any number.")
@click.option("--weight", type=click.IntRange(1, 1000), metavar="N", help="Share of a contended queue.")
@common
@pass_state
def set_tenant(
    state: State, name: str, rps: float | None, burst: int | None, max_concurrent: int | None, weight: int | None
) -> None:
    """Make a tenant, or change what is given of one."""
    with state.client() as client:
        made = client.access.set_tenant(
            name, requests_per_second=rps, burst=burst, max_concurrent_requests=max_concurrent, weight=weight
        )
    if state.json:
        state.emit(made)
        return
    rate, _, at_once = _quota(made)
    state.say(
        f"[bold green]✓[/bold green] tenant [bold]{escape(made.name)}[/bold]: {rate} requests/s, {at_once} at once"
    )


@tenants.command("delete")
@click.argument("name")
@common
@pass_state
def delete_tenant(state: State, name: str) -> None:
    """Delete a tenant without functions, with its keys and secrets."""
    with state.client() as client:
        client.access.delete_tenant(name)
    _done(state, "deleted", name, f"tenant [bold]{escape(name)}[/bold] is deleted")


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
    _done(state, "revoked", key_id, f"key [bold]{escape(key_id)}[/bold] is revoked")


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
    _done(state, "set", name, f"secret [bold]{escape(name)}[/bold] is set; instances that start from now on get it")


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
    _done(state, "deleted", name, f"secret [bold]{escape(name)}[/bold] is deleted")


def _done(state: State, what: str, name: str, words: str) -> None:
    if state.json:
        state.emit({what: name})
        return
    state.say(f"[bold green]✓[/bold green] {words}")

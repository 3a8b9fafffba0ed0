"""rouse tenants."""

from __future__ import annotations

import click
from rich.markup import escape

import rouse
from rouse.cli import text
from rouse.cli.state import State, common, pass_state


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
    rate, _, at_once = _quota(made)
    state.done(made, f"tenant [bold]{escape(made.name)}[/bold]: {rate} requests/s, {at_once} at once")


@tenants.command("delete")
@click.argument("name")
@common
@pass_state
def delete_tenant(state: State, name: str) -> None:
    """Delete a tenant without functions, with its keys and secrets."""
    with state.client() as client:
        client.access.delete_tenant(name)
    state.done({"deleted": name}, f"tenant [bold]{escape(name)}[/bold] is deleted")

"""rouse usage."""

from __future__ import annotations

import click
from rich.markup import escape

from rouse.cli import text
from rouse.cli.state import State, common, pass_state


@click.command()
@click.option("--by", type=click.Choice(["tenant", "function"]), help="A row each; else one for every pair.")
@click.option("--tenant", default="", metavar="NAME", help="Whose requests; another's is for administrators.")
@common
@pass_state
def usage(state: State, by: str | None, tenant: str) -> None:
    """What requests used in all: your tenant's, or everybody's for administrators."""
    with state.client() as client:
        found = client.usage(by=by, tenant=tenant)
    if state.json:
        state.emit({"usage": found})
        return
    names = [by] if by else ["tenant", "function"]
    table = text.table(*names, ">requests", ">failed", ">devices worked", ">swap-ins", ">swapping")
    for row in found:
        keys = {"tenant": escape(row.tenant) or "[dim]not known[/dim]", "function": escape(row.function)}
        total = row.usage
        table.add_row(
            *(keys[name] for name in names),
            str(total.requests),
            str(total.failures),
            text.milliseconds(total.device_ms),
            str(total.swap_ins),
            text.milliseconds(total.swap_ms),
        )
    state.out.print(table)

"""rouse usage."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
from rich.markup import escape

from rouse.cli import ledger, text
from rouse.cli.state import State, common, pass_state
from rouse.types import UsageRow


class Hour(click.ParamType):
    """A time: without a time zone it is UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            when = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"'{value}': want a day or an hour, as 2026-11-01 or 2026-11-01T13:00", param, ctx)
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
        if (when.minute, when.second, when.microsecond) != (0, 0, 0):
            self.fail(f"'{value}': want a whole hour, bills are by the hour", param, ctx)
        return when


@click.command()
@click.option("--by", type=click.Choice(["tenant", "function", "hour"]), help="A row each; else one for every pair.")
@click.option("--tenant", default="", metavar="NAME", help="Whose requests; another's is for administrators.")
@click.option("--since", type=Hour(), metavar="TIME", help="Only from this hour on, as 2026-11-01 or 2026-11-01T13:00.")
@click.option("--until", type=Hour(), metavar="TIME", help="Only before this hour.")
@click.option(
    "--export",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Writes the ledger, a row for every hour, tenant and function, to FILE.csv or FILE.jsonl.",
)
@common
@pass_state
def usage(
    state: State, by: str | None, tenant: str, since: datetime | None, until: datetime | None, export: Path | None
) -> None:
    """What requests used and what is paid for: your tenant's, or everybody's for administrators."""
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until")
    if export is not None:
        if by not in (None, "hour"):
            raise click.UsageError(f"--export writes hours; leave out --by {by}")
        if export.suffix not in ledger.WRITERS:
            raise click.UsageError(f"--export {export}: want a name that ends in {' or '.join(ledger.WRITERS)}")
        by = "hour"
    with state.client() as client:
        found = client.usage(by=by, tenant=tenant, since=since, until=until)
    if export is not None:
        try:
            ledger.write(export, found)
        except OSError as error:
            raise click.FileError(str(export), error.strerror) from None
        state.done(
            {"rows": len(found), "file": str(export)}, f"{text.count(len(found), 'row')} in {escape(str(export))}"
        )
    elif state.json:
        state.emit({"usage": found})
    else:
        _show(state, by, found)


def _show(state: State, by: str | None, found: list[UsageRow]) -> None:
    names = ["hour", "tenant", "function"] if by == "hour" else [by] if by else ["tenant", "function"]
    table = text.table(
        *names, ">requests", ">failed", ">devices worked", ">swap-ins", ">swapping", ">host memory", ">billed"
    )
    for row in found:
        keys = {
            "hour": "" if row.hour is None else f"{row.hour:%Y-%m-%d %H:00}",
            "tenant": escape(row.tenant) or "[dim]not known[/dim]",
            "function": escape(row.function),
        }
        total = row.usage
        table.add_row(
            *(keys[name] for name in names),
            str(total.requests),
            str(total.failures),
            text.milliseconds(total.device_ms),
            str(total.swap_ins),
            text.milliseconds(total.swap_ms),
            text.milliseconds(total.host_ms),
            text.milliseconds(total.billed_ms),
        )
    state.out.print(table)

"""Usage in periods, and the time that weights lie in the host memory of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Double, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from rouse_store.models import Function, Node, Placement, UsageHour, UsageTotal, Version

# States in which a node has the weights in host memory; the copy stays while there is another on a device.
IN_HOST_MEMORY = ("HOST", "SWAPPING_IN", "DEVICE", "EXECUTING")
# A record counts in the hour in which its request ended, unless that time is so far from when it came that a clock
# must be wrong.
LATEST, EARLIEST = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Period:
    """Hours from `since` to before `until`; None: open."""

    since: datetime | None = None
    until: datetime | None = None

    @property
    def open(self) -> bool:
        return self.since is None and self.until is None


ALWAYS = Period()


def hour_of(finished_at: datetime, recorded_at: datetime) -> datetime:
    """The hour that a record counts in."""
    likely = recorded_at - EARLIEST <= finished_at <= recorded_at + LATEST
    when = (finished_at if likely else recorded_at).astimezone(UTC)
    return when.replace(minute=0, second=0, microsecond=0)


def within(period: Period) -> list[Any]:
    """Conditions on UsageHour."""
    found: list[Any] = []
    if period.since is not None:
        found.append(UsageHour.hour >= period.since)
    if period.until is not None:
        found.append(UsageHour.hour < period.until)
    return found


def after(last: tuple[datetime, str, str]) -> Any:
    """The condition that a row of hour, tenant and function comes after that one."""
    return tuple_(UsageHour.hour, UsageHour.tenant, UsageHour.function) > tuple_(*map(literal, last))


def accrue_host_memory(session: Session, now: datetime, elapsed_s: float) -> None:
    """Counts that weights which are in host memory now were there for the last `elapsed_s` seconds, for the tenants
    that own their functions. A node that is lost has nothing in memory that anybody could use."""
    # A version that is on several devices of a node has one copy in its host memory.
    copies = (
        select(Placement.node_id, Placement.version_id, func.max(Placement.size_bytes).label("size_bytes"))
        .join(Node, Node.node_id == Placement.node_id)
        .where(Placement.state.in_(IN_HOST_MEMORY), Node.state == "READY")
        .group_by(Placement.node_id, Placement.version_id)
        .subquery()
    )
    key = (Function.name, Version.version_id, Function.tenant)
    held = (
        select(
            *key,
            literal(0).label("requests"), literal(0).label("failures"), literal(0.0, Double).label("device_ms"),
            literal(0).label("swap_ins"), literal(0.0, Double).label("swap_ms"),
            (func.count() * literal(elapsed_s * 1000, Double)).label("host_ms"),
            (func.sum(copies.c.size_bytes) * literal(elapsed_s, Double)).label("host_byte_s"),
        )
        .join(Version, Version.version_id == copies.c.version_id)
        .join(Function, Function.function_id == Version.function_id)
        .group_by(*key)
        # The order in which requests' usage locks the same rows.
        .order_by(*key)
    )  # fmt: skip
    names = [
        "function", "version_id", "tenant", "requests", "failures", "device_ms", "swap_ins", "swap_ms", "host_ms",
        "host_byte_s",
    ]  # fmt: skip
    _add(session, UsageTotal, names, held)
    hour = literal(hour_of(now, now)).label("hour")
    _add(session, UsageHour, [*names, "hour"], held.add_columns(hour))


def _add(session: Session, table: type[UsageTotal] | type[UsageHour], names: Sequence[str], rows: Any) -> None:
    statement = insert(table).from_select(list(names), rows)
    added = {name: getattr(table, name) + statement.excluded[name] for name in ("host_ms", "host_byte_s")}
    keys = list(table.__table__.primary_key)
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=added))

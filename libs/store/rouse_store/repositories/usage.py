"""What was served, for bills: each request once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Text, cast, column, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from rouse_store.models import UsageHour, UsageRecord, UsageTotal
from rouse_store.repositories import delete_rows
from rouse_store.repositories.usage_hours import ALWAYS, Period, accrue_host_memory, after, hour_of, within

KEY = ("function", "version_id", "tenant")
COUNTED = ("requests", "failures", "device_ms", "swap_ins", "swap_ms")
SUMMED = (*COUNTED, "host_ms", "host_byte_s")
# Rows of the ledger: hour by hour, in this order.
LEDGER = ("hour", "tenant", "function")


@dataclass(frozen=True)
class UsageSum:
    """Totals over some versions; times in milliseconds, and byte-seconds in host memory."""

    requests: int = 0
    failures: int = 0
    device_ms: float = 0.0
    swap_ins: int = 0
    swap_ms: float = 0.0
    host_ms: float = 0.0
    host_byte_s: float = 0.0


class Usage:
    def __init__(self, session: Session) -> None:
        self._session = session

    def add(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Counts records, given as columns of UsageRecord, whose request is not known yet; returns how many."""
        # Sorted, so that two batches which share requests and totals lock them in one order.
        rows = sorted({row["request_id"]: row for row in reversed(records)}.values(), key=lambda r: r["request_id"])
        if not rows:
            return 0
        fresh = self._insert(rows)
        totals: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(lambda: asdict(UsageSum()))
        hours: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(lambda: asdict(UsageSum()))
        for row in rows:
            if row["request_id"] in fresh:
                hour = hour_of(row["finished_at"], row["recorded_at"])
                sums = hours[row["function"], row["version_id"], row["tenant"], hour]
                sums["requests"] += 1
                sums["failures"] += row["status_code"] != 0
                sums["device_ms"] += row["device_ms"]
                sums["swap_ins"] += row["swapped_in"]
                sums["swap_ms"] += row["swap_ms"]
        for (*key, _), sums in hours.items():
            total = totals[tuple(key)]
            for name in COUNTED:
                total[name] += sums[name]
        self._count(UsageTotal, KEY, totals)
        self._count(UsageHour, (*KEY, "hour"), hours)
        return len(fresh)

    def _count(
        self, table: type[UsageTotal] | type[UsageHour], names: Sequence[str],
        sums: Mapping[tuple[Any, ...], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        if not sums:
            return
        upsert = insert(table)
        added = {name: getattr(table, name) + upsert.excluded[name] for name in COUNTED}
        ordered = sorted(sums.items(), key=lambda entry: entry[0])
        self._session.execute(
            upsert.on_conflict_do_update(index_elements=[getattr(table, name) for name in names], set_=added),
            [dict(zip(names, key, strict=True)) | dict(total) for key, total in ordered],
        )

    def accrue_host_memory(self, now: datetime, elapsed_s: float) -> None:
        """Counts the last `elapsed_s` seconds for weights that are in host memory now."""
        accrue_host_memory(self._session, now, elapsed_s)

    def _insert(self, rows: Sequence[Mapping[str, Any]]) -> set[str]:
        """Writes records down; the requests that were not known. They go as one JSON text: the driver quotes that once,
        and of an array a column each value, which took two and a half times as long."""
        named = [column for column in UsageRecord.__table__.columns if column.name in rows[0]]
        names = [column.name for column in named]
        sent = json.dumps(rows, default=datetime.isoformat, separators=(",", ":"))
        record = (
            func.json_to_recordset(cast(literal(sent, Text), JSON))
            .table_valued(*(column(one.name, one.type) for one in named), name="record")
            .render_derived(with_types=True)
        )
        statement = insert(UsageRecord).from_select(names, select(*(record.c[name] for name in names)))
        known = statement.on_conflict_do_nothing(index_elements=[UsageRecord.request_id])
        return set(self._session.scalars(known.returning(UsageRecord.request_id)))

    def total(self, function: str, version_ids: Iterable[str]) -> UsageSum:
        """What some versions of a function used."""
        query = select(*(func.sum(getattr(UsageTotal, name)) for name in SUMMED)).where(
            UsageTotal.function == function, UsageTotal.version_id.in_(list(version_ids))
        )
        return _sum(self._session.execute(query).one())

    def by(
        self, names: Sequence[str], tenant: str, most: int, period: Period = ALWAYS
    ) -> list[tuple[dict[str, str], UsageSum]]:
        """Totals for each value of some columns ("function", "tenant"), those that kept devices longest first, `most`
        of them.

        Args:
            tenant: only this one's requests; empty is everybody's.
            period: only what was used in it.
        """
        table = UsageTotal if period.open else UsageHour
        columns = [getattr(table, name) for name in names]
        device_ms = func.sum(table.device_ms)
        query = select(*columns, *(func.sum(getattr(table, name)) for name in SUMMED)).group_by(*columns)
        query = query.where(*within(period))
        if tenant:
            query = query.where(table.tenant == tenant)
        found = self._session.execute(query.order_by(device_ms.desc(), *columns).limit(most)).all()
        return [(dict(zip(names, row, strict=False)), _sum(row[len(names) :])) for row in found]

    def ledger(
        self, tenant: str, most: int, period: Period, last: tuple[datetime, str, str] | None
    ) -> list[tuple[dict[str, Any], UsageSum]]:
        """Usage by LEDGER, in that order, `most` rows from behind the row `last` on."""
        columns = [getattr(UsageHour, name) for name in LEDGER]
        query = select(*columns, *(func.sum(getattr(UsageHour, name)) for name in SUMMED)).where(*within(period))
        if tenant:
            query = query.where(UsageHour.tenant == tenant)
        if last is not None:
            query = query.where(after(last))
        found = self._session.execute(query.group_by(*columns).order_by(*columns).limit(most)).all()
        return [(dict(zip(LEDGER, row, strict=False)), _sum(row[len(LEDGER) :])) for row in found]

    def prune_hours(self, before: datetime) -> int:
        """Forgets hours that began before a time. Totals stay."""
        return delete_rows(self._session, delete(UsageHour).where(UsageHour.hour < before))

    def prune(self, keep: int, before: datetime) -> int:
        """Forgets records beyond the `keep` newest and those recorded before a time. Totals stay."""
        oldest_kept = self._session.scalar(
            select(UsageRecord.recorded_at).order_by(UsageRecord.recorded_at.desc()).offset(keep).limit(1)
        )
        limit = before if oldest_kept is None else max(before, oldest_kept)
        return delete_rows(self._session, delete(UsageRecord).where(UsageRecord.recorded_at <= limit))


def _sum(values: Sequence[Any]) -> UsageSum:
    """A row of sums over SUMMED, which are null where there was nothing to sum."""
    found = dict(zip(SUMMED, values, strict=True))
    if found["requests"] is None:
        return UsageSum()
    return UsageSum(
        requests=int(found["requests"]),
        failures=int(found["failures"]),
        device_ms=float(found["device_ms"]),
        swap_ins=int(found["swap_ins"]),
        swap_ms=float(found["swap_ms"]),
        host_ms=float(found["host_ms"]),
        host_byte_s=float(found["host_byte_s"]),
    )

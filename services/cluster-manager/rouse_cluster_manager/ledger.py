"""Usage, bills and events: what is written down and how long it is kept."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from rouse_cluster_manager import metrics, pages
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.state import at
from rouse_common.clock import Clock
from rouse_common.errors import InvalidArgument
from rouse_contracts import cluster, functions
from rouse_store import Database, Unit
from rouse_store.repositories.usage_hours import Period
from rouse_store.text import clean

MAX_RECORDS = 1000
DEFAULT_EVENTS = 100
MAX_EVENTS = 1000
IDS = ("request_id", "function", "version_id", "tenant", "node_id", "device")
MAX_ID_CHARS = 256
MAX_STATUS_CODE = 1 << 30
# Of usage in one answer, those that used most.
MAX_ROWS = 1000
GROUPINGS = {
    functions.USAGE_GROUPING_UNSPECIFIED: ("tenant", "function"),
    functions.USAGE_GROUPING_TENANT: ("tenant",),
    functions.USAGE_GROUPING_FUNCTION: ("function",),
}
USAGE_KEPT_S = 7 * 86_400.0
HOURS_KEPT_S = 400 * 86_400.0
# How often weights in host memory are counted; one that stays for less may be missed, or count for so long.
ACCRUE_S = 10.0


class Ledger:
    """Args:
    keep_events, keep_usage: how many events and usage records are kept; totals always are.
    keep_ended: how many ended instances of each version are kept.
    """

    def __init__(self, database: Database, clock: Clock, *, keep_events: int, keep_usage: int, keep_ended: int) -> None:
        self._database, self._clock = database, clock
        self._keep_events, self._keep_usage, self._keep_ended = keep_events, keep_usage, keep_ended
        self._accrued = clock.monotonic()

    async def record_usage(self, records: list[cluster.UsageRecord]) -> None:
        """Counts each request once, however often it comes. Raises InvalidArgument TOO_MANY_RECORDS | BAD_USAGE."""
        if len(records) > MAX_RECORDS:
            raise InvalidArgument("TOO_MANY_RECORDS", f"{len(records)} records in one call, {MAX_RECORDS} at most")
        now = at(self._clock.now())
        columns = [_columns(record) | {"recorded_at": now} for record in records]
        counted = await self._database.run(lambda unit: unit.usage.add(columns))
        metrics.USAGE_RECORDS.labels("counted").inc(counted)
        metrics.USAGE_RECORDS.labels("known").inc(len(records) - counted)

    async def accrue_host_memory(self) -> None:
        """Counts weights that are in host memory, since the last time. Nobody pays for a time in which this did not
        run: nobody knows what was there."""
        now = self._clock.monotonic()
        elapsed_s = min(now - self._accrued, 2 * ACCRUE_S)
        wall = at(self._clock.now())
        await self._database.run(lambda unit: unit.usage.accrue_host_memory(wall, elapsed_s))
        self._accrued = now

    async def usage(self, request: cluster.GetUsageRequest) -> cluster.GetUsageResponse:
        """What one tenant's requests used, or everybody's.

        Raises InvalidArgument BAD_GROUPING | BAD_PERIOD | BAD_PAGE.
        """
        tenant, period = clean(request.tenant, MAX_ID_CHARS), _period(request)
        if request.grouping == functions.USAGE_GROUPING_HOUR:
            return await self._hours(tenant, period, request.page_token)
        names = GROUPINGS.get(request.grouping)
        if names is None:
            wanted = sorted([*GROUPINGS, functions.USAGE_GROUPING_HOUR])
            raise InvalidArgument("BAD_GROUPING", f"grouping {request.grouping}: want one of {wanted}")
        found = await self._database.run(lambda unit: unit.usage.by(names, tenant, MAX_ROWS, period))
        listed = [
            functions.UsageRow(
                tenant=key.get("tenant", ""), function=key.get("function", ""), usage=rows.usage_message(total)
            )
            for key, total in found
        ]
        return cluster.GetUsageResponse(rows=listed)

    async def _hours(self, tenant: str, period: Period, page_token: str) -> cluster.GetUsageResponse:
        last = pages.read(page_token) if page_token else None
        # One more than fits tells whether there is another page.
        found = await self._database.run(lambda unit: unit.usage.ledger(tenant, MAX_ROWS + 1, period, last))
        listed = [
            functions.UsageRow(
                tenant=key["tenant"], function=key["function"], hour=rows.timestamp(key["hour"]),
                usage=rows.usage_message(total),
            )
            for key, total in found[:MAX_ROWS]
        ]  # fmt: skip
        token = ""
        if len(found) > MAX_ROWS:
            key = found[MAX_ROWS - 1][0]
            token = pages.write((key["hour"], key["tenant"], key["function"]))
        return cluster.GetUsageResponse(rows=listed, next_page_token=token)

    async def events(self, subject: str, limit: int) -> list[functions.Event]:
        """Newest first. Raises InvalidArgument BAD_LIMIT."""
        if limit > MAX_EVENTS:
            raise InvalidArgument("BAD_LIMIT", f"limit is {limit}, {MAX_EVENTS} at most")
        found = await self._database.run(lambda unit: unit.events.newest(subject, limit or DEFAULT_EVENTS))
        return [rows.event_message(event) for event in found]

    async def prune(self) -> None:
        """Forgets what is older than it is kept."""
        now = at(self._clock.now())

        def work(unit: Unit) -> None:
            unit.events.prune(self._keep_events)
            unit.usage.prune(self._keep_usage, now - timedelta(seconds=USAGE_KEPT_S))
            unit.usage.prune_hours(now - timedelta(seconds=HOURS_KEPT_S))
            unit.instances.prune(self._keep_ended)

        await self._database.run(work)


def _period(request: cluster.GetUsageRequest) -> Period:
    since = _hour(request, "since")
    until = _hour(request, "until")
    if since is not None and until is not None and since >= until:
        raise InvalidArgument("BAD_PERIOD", f"since {since.isoformat()} is not before until {until.isoformat()}")
    return Period(since, until)


def _hour(request: cluster.GetUsageRequest, field: str) -> datetime | None:
    if not request.HasField(field):
        return None
    stamp = getattr(request, field)
    when = rows.moment(stamp)
    if stamp.nanos or stamp.seconds % 3600 or when == rows.EPOCH:
        raise InvalidArgument("BAD_PERIOD", f"{field} is {when.isoformat()}; want a whole hour: bills are by the hour")
    return when


def _columns(record: cluster.UsageRecord) -> dict[str, Any]:
    device_ms, swap_ms, queue_ms = record.device_ms, record.swap_ms, record.queue_ms
    if not record.request_id or not record.function:
        raise InvalidArgument("BAD_USAGE", "a usage record without request_id or function")
    # What is not a number is in no range.
    if not (0 <= device_ms < math.inf and 0 <= swap_ms < math.inf and 0 <= queue_ms < math.inf):
        raise InvalidArgument(
            "BAD_USAGE",
            f"request '{clean(record.request_id, 80)}' has times {device_ms=}, {swap_ms=}, {queue_ms=}; want each "
            "finite and not negative",
        )
    # Spelt out: every request of the mesh comes by here.
    return {
        "request_id": clean(record.request_id, MAX_ID_CHARS),
        "function": clean(record.function, MAX_ID_CHARS),
        "version_id": clean(record.version_id, MAX_ID_CHARS),
        "tenant": clean(record.tenant, MAX_ID_CHARS),
        "node_id": clean(record.node_id, MAX_ID_CHARS),
        "device": clean(record.device, MAX_ID_CHARS),
        "device_ms": device_ms,
        "swap_ms": swap_ms,
        "queue_ms": queue_ms,
        "finished_at": rows.moment(record.finished_at),
        "status_code": min(record.status_code, MAX_STATUS_CODE),
        "swapped_in": record.swapped_in,
    }

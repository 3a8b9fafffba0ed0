"""The access table: what gateways check keys with, complete, its generation rising."""

from __future__ import annotations

from datetime import timedelta

from rouse_cluster_manager.adapters import access_rows
from rouse_cluster_manager.adapters.rows import timestamp
from rouse_cluster_manager.state import at
from rouse_contracts import access
from rouse_store import Unit
from rouse_store.models_access import Key

# A text that is out of date is still known for so long, to say so instead of calling it unknown.
EXPIRED_KNOWN_S = 86_400.0


def read(unit: Unit, now: float) -> access.AccessTable:
    """The table as the database has it in this transaction, which must be REPEATABLE READ."""
    table = access.AccessTable(generation=unit.next_access_generation())
    for row in unit.access.list_keys():
        if row.revoked_at is None:
            table.keys.extend(_digests(row, now))
    table.tenants.extend(access_rows.tenant_message(row) for row in unit.access.tenants())
    return table


def _digests(row: Key, now: float) -> list[access.KeyDigest]:
    texts = [(row.digest, row.expires_at)]
    if row.previous_digest is not None and row.previous_until is not None:
        ends = row.previous_until if row.expires_at is None else min(row.previous_until, row.expires_at)
        texts.append((row.previous_digest, ends))
    return [
        access.KeyDigest(
            key_id=row.key_id, sha256=digest, tenant=row.tenant, role=f"ROLE_{row.role}",
            valid_until=None if until is None else timestamp(until),
        )
        for digest, until in texts
        if until is None or until > at(now) - timedelta(seconds=EXPIRED_KNOWN_S)
    ]  # fmt: skip

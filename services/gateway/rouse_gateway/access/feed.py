"""Keeps the access table up to date: a key that was revoked is known for REFETCH_S at most."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rouse_contracts.access import AccessTable
from rouse_gateway.access.guard import Access
from rouse_gateway.access.table import Table, index
from rouse_gateway.table_feed import TableFeed


class AccessFeed(TableFeed[AccessTable, Table]):
    """Feeds the guard.

    Args:
        fetch: gets the table from cluster-manager. Raises RouseError.
    """

    def __init__(self, guard: Access, fetch: Callable[[], Awaitable[AccessTable]]) -> None:
        super().__init__("access table", guard, AccessTable, index, fetch)

"""The routing table as a caller sees it: functions of other tenants that are not shared are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from rouse_common.errors import PermissionDenied
from rouse_gateway.access.caller import Caller, current
from rouse_gateway.state import Route, Routes, Table

# Tenants whose view of one table is kept.
MAX_VIEWS = 1000


def sees(caller: Caller, tenant: str, shared: bool) -> bool:
    """Whether a function of a tenant exists for a caller."""
    return shared or caller.owns(tenant)


def check_owner(caller: Caller, function: str, tenant: str) -> None:
    """Raises PermissionDenied NOT_OWNER where a function that a caller sees is another tenant's."""
    if not caller.owns(tenant):
        raise PermissionDenied(
            "NOT_OWNER", f"function '{function}' is shared by another tenant; it is not yours to change or look into",
            function=function, tenant=caller.tenant,
        )  # fmt: skip


class Seen(Mapping[str, Route]):
    """Functions by name, of those that a caller sees."""

    def __init__(self, functions: Mapping[str, Route], caller: Caller) -> None:
        self._functions, self._caller = functions, caller

    def __getitem__(self, name: str) -> Route:
        route = self._functions[name]
        if not sees(self._caller, route.tenant, route.shared):
            raise KeyError(name)
        return route

    def __iter__(self) -> Iterator[str]:
        return (name for name, route in self._functions.items() if sees(self._caller, route.tenant, route.shared))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class VisibleRoutes(Routes):
    """The routes of a gateway, for those who serve requests: shows each caller what it may see."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self.loaded = routes.loaded
        self._of = routes.table
        self._views: dict[str, Table] = {}

    @property
    def table(self) -> Table:
        table, caller = self._routes.table, current()
        if caller.sees_all:
            return table
        if table is not self._of or len(self._views) > MAX_VIEWS:
            self._of, self._views = table, {}
        # What is seen depends on the tenant alone.
        view = self._views.get(caller.tenant)
        if view is None:
            functions = Seen(table.functions, caller)
            view = self._views[caller.tenant] = dataclasses.replace(table, functions=functions)
        return view

    def loaded_table(self) -> Table:
        self._routes.loaded_table()
        return self.table

    def apply(self, table: Table, *, restored: bool = False) -> bool:
        return self._routes.apply(table, restored=restored)

    async def change(self, timeout_s: float) -> None:
        await self._routes.change(timeout_s)

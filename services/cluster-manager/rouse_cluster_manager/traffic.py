"""How requests that name no version are shared between the versions of a function, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rouse_cluster_manager.catalogue import not_found, summary
from rouse_cluster_manager.shares import assign, check, current, roll_back, words
from rouse_cluster_manager.state import at
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition
from rouse_contracts import functions
from rouse_store import Database, Unit
from rouse_store.models import Function
from rouse_store.text import clean


class Traffic:
    """Changes the shares of functions, one change of a function at a time."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    async def set(self, name: str, shares: Iterable[functions.TrafficShare]) -> functions.FunctionSummary:
        """Replaces the shares; none are all to the newest version. What is set already stays as it is, with
        what it can be rolled back to, so that the call may be repeated.

        Raises NotFound FUNCTION_NOT_FOUND | VERSION_NOT_FOUND, InvalidArgument BAD_TRAFFIC,
        FailedPrecondition FUNCTION_DELETING.
        """
        wanted, now = list(shares), at(self._clock.now())

        def work(unit: Unit) -> functions.FunctionSummary:
            function = _locked(unit, name)
            numbers = [version.version for version in function.versions]
            percents = check(function.name, wanted, numbers) if wanted else {max(numbers): 100}
            before = current(function)
            if assign(function, percents):
                unit.routing_changed = True
                unit.record(now, "function.traffic", function.name, f"{words(percents)}; before: {words(before)}")
            return _summary(unit, function)

        return await self._database.run(work)

    async def roll_back(self, name: str) -> functions.FunctionSummary:
        """Puts back what the last deployment or change replaced.

        Raises NotFound FUNCTION_NOT_FOUND, FailedPrecondition NOTHING_TO_ROLL_BACK | FUNCTION_DELETING.
        """
        now = at(self._clock.now())

        def work(unit: Unit) -> functions.FunctionSummary:
            function = _locked(unit, name)
            before: Mapping[int, int] = current(function)
            percents = roll_back(function)
            unit.routing_changed = True
            unit.record(now, "function.rolled_back", function.name, f"{words(percents)}; before: {words(before)}")
            return _summary(unit, function)

        return await self._database.run(work)


def _locked(unit: Unit, name: str) -> Function:
    function = unit.functions.find(clean(name), lock=True)
    if function is None:
        raise not_found(name)
    if function.state != "ACTIVE":
        raise FailedPrecondition("FUNCTION_DELETING", f"function '{name}' is being deleted", function=name)
    return function


def _summary(unit: Unit, function: Function) -> functions.FunctionSummary:
    instances = unit.instances.of_function(function.function_id)
    return summary(function, [row for row in instances if row.version_id == function.active.version_id], {})

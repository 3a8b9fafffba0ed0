"""Functions and their waiting requests on one node, and which of them goes next."""

from __future__ import annotations

from collections import deque

from rouse_policy import queueing
from rouse_policy.queueing import Head, Snapshot
from rouse_policy.standings import Standings
from rouse_simulator.profile import Model
from rouse_simulator.results import FunctionResult


class Request:
    """A request: its ticket counts up in the order of arrival."""

    __slots__ = ("arrived", "deadline", "function", "ticket")

    def __init__(self, ticket: int, function: Function, arrived: float) -> None:
        self.ticket, self.function, self.arrived = ticket, function, arrived
        self.deadline = arrived + function.model.deadline_s


class Function:
    """A deployed function on one node. `lifespan_s`: how long it is kept alive where that is known from its history."""

    __slots__ = ("bound", "heavy", "lifespan_s", "model", "name", "result", "waiting")

    def __init__(self, name: str, model: Model, heavy: bool, result: FunctionResult) -> None:
        self.name, self.model, self.heavy, self.result = name, model, heavy, result
        self.waiting: deque[Request] = deque()
        self.bound = ""
        self.lifespan_s: float | None = None


class Line:
    """Functions that wait for the same devices, and the policy's choice among them."""

    def __init__(self, settings: queueing.Settings) -> None:
        self._settings = settings
        self._state = queueing.State()
        self._heads: dict[str, Head] = {}
        self._standings = Standings(settings.objective)
        self._functions: dict[str, Function] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def add(self, request: Request) -> None:
        """A request arrived."""
        function = request.function
        if function.name not in self._functions:
            self._functions[function.name] = function
        function.waiting.append(request)
        if len(function.waiting) == 1:
            self._show(function)

    def take(self, function: Function) -> Request:
        """The function's next request, which waits no longer."""
        request = function.waiting.popleft()
        if function.waiting:
            self._show(function)
        else:
            del self._heads[function.name]
        return request

    def next(self, busy: int, without: set[str], now: float) -> Function | None:
        """The function that goes next, None where none may."""
        heads = list(self._heads.values())
        if without:
            heads = [head for head in heads if head.version_id not in without]
        if len(heads) == 1 and self._settings.order is not queueing.Order.RRC:
            return self._functions[heads[0].version_id]
        snapshot = Snapshot(heads, busy, self._standings.behind, len(self._functions))
        decision, self._state = queueing.decide(snapshot, self._state, self._settings, now)
        if decision.action is queueing.Action.WAIT:
            return None
        return self._functions[decision.version_id]

    def answered(self, function: Function, in_time: bool) -> None:
        """A request of the function was answered."""
        if self._settings.order is not queueing.Order.RRC:
            return
        self._standings.answered(function.name, in_time)
        if function.waiting:
            self._show(function)

    def _show(self, function: Function) -> None:
        first = function.waiting[0]
        self._heads[function.name] = Head(
            version_id=function.name,
            deadline=first.deadline,
            arrived=first.arrived,
            required=self._standings.required(function.name),
            execution_s=function.model.resident_s,
        )

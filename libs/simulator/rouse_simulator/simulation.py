"""A run: functions on nodes, arrivals, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rouse_policy import heaviness
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.clock import Clock
from rouse_simulator.early import EarlyNode
from rouse_simulator.functions import Function, Request
from rouse_simulator.late import LateNode
from rouse_simulator.profile import Model, Profile
from rouse_simulator.results import FunctionResult, Results
from rouse_simulator.variants import Binding, Variant


@dataclass(frozen=True)
class Setup:
    """What is run.

    Args:
        profile: the node and the models.
        variant: the system.
        models: of each function, by number.
        seconds: how long requests arrive.
        warmup_s: what arrives before it is served, and not counted.
        nodes: how many nodes of the profile's kind there are.
        seed: of whatever a policy draws by chance.
        lifespans_s: of each function, by number, how long keep-alive keeps it after a request; None: it learns it.
        drain_s: how long the run goes on once nothing arrives any more; None: for the longest deadline.
    """

    profile: Profile
    variant: Variant
    models: Sequence[Model]
    seconds: float
    warmup_s: float = 0.0
    nodes: int = 1
    seed: int = 0
    lifespans_s: Sequence[float] | None = None
    drain_s: float | None = None


def round_robin(profile: Profile, count: int) -> list[Model]:
    """The profile's models in turn, as the paper distributes them (section 7)."""
    return [profile.models[number % len(profile.models)] for number in range(count)]


def is_heavy(model: Model) -> bool:
    """As the policy finds it from a measured pair of latencies."""
    measured = heaviness.Measured(model.resident_s, model.swap_host_s)
    return heaviness.decide(measured, None, heaviness.Settings(), 0.0)[0].heavy


class Simulation:
    """One run, reproducible from its setup and its arrivals."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.clock = setup, Clock()
        kind = LateNode if setup.variant.binding is Binding.LATE else EarlyNode
        self.nodes: list[LateNode | EarlyNode] = [
            kind(f"node{n}", setup.profile.node, setup.variant, self.clock, setup.seed + n, setup.warmup_s)
            for n in range(setup.nodes)
        ]
        self._functions: list[Function] = []
        self._home: list[LateNode | EarlyNode] = []
        self._tickets = 0
        self._deploy()

    def _deploy(self) -> None:
        """Spreads the functions over the nodes. Functions of one model spread evenly, too."""
        count = len(self.nodes)
        heavy = {model.name: is_heavy(model) for model in self.setup.profile.models}
        kinds: dict[str, int] = {}
        first = {model.name: number for number, model in enumerate(self.setup.profile.models)}
        here: list[list[Function]] = [[] for _ in self.nodes]
        for number, model in enumerate(self.setup.models):
            turn = kinds.get(model.name, first[model.name])
            kinds[model.name] = turn + 1
            function = Function(f"f{number:05}", model, heavy[model.name], FunctionResult(model.name, model.deadline_s))
            if self.setup.lifespans_s is not None:
                function.lifespan_s = self.setup.lifespans_s[number]
            self._functions.append(function)
            self._home.append(self.nodes[turn % count])
            here[turn % count].append(function)
        for node, functions in zip(self.nodes, here, strict=True):
            for function in functions:
                node.deploy(function)
            node.warm(functions)

    def run(self, arrivals: Arrivals) -> Results:
        """Plays all arrivals. What is not answered once the run has drained counts as missed.

        Raises ValueError where the arrivals are for other functions.
        """
        setup = self.setup
        if arrivals.count != len(setup.models):
            raise ValueError(f"arrivals of {arrivals.count} functions, {len(setup.models)} are deployed")
        longest = max(model.deadline_s for model in setup.models)
        drain_s = longest if setup.drain_s is None else setup.drain_s
        self.clock.run(arrivals, self._arrive, setup.seconds + drain_s)
        devices = [device for node in self.nodes for device in node.devices]
        return Results([f.result for f in self._functions], devices, setup.seconds - setup.warmup_s)

    def _arrive(self, number: int) -> None:
        function = self._functions[number]
        self._tickets += 1
        if self.clock.now >= self.setup.warmup_s:
            function.result.arrived += 1
        self._home[number].arrive(Request(self._tickets, function, self.clock.now))


def simulate(setup: Setup, arrivals: Arrivals) -> Results:
    """Runs a setup once."""
    return Simulation(setup).run(arrivals)

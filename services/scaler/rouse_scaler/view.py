"""The mesh as one round of the scaler sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rouse_cache import VERSION_MARK, Activity
from rouse_contracts import cluster, functions
from rouse_contracts.tapes import counts


@dataclass(frozen=True)
class Target:
    """A version that requests reach which name none.

    Args:
        function: its function.
        version: what is to be started.
        key: the version in the registry; empty for the active one.
        others: the function's other versions with traffic; for the active one only.
    """

    function: functions.FunctionSummary
    version: functions.FunctionVersion
    key: str = ""
    others: frozenset[str] = frozenset()

    def owns(self, instance: cluster.Instance) -> bool:
        """Whether the instance is this target's to decide on: those of versions without traffic are the
        active version's."""
        if self.key:
            return bool(instance.version_id == self.key)
        return instance.version_id not in self.others


@dataclass(frozen=True)
class View:
    """The mesh as one round sees it."""

    targets: Sequence[Target]
    instances: Mapping[str, Sequence[cluster.Instance]]
    coordinators: Mapping[str, str]
    nodes: Sequence[cluster.Node]
    # Functions and versions, as the registry knows them.
    executing: frozenset[tuple[str, str]]
    activity: Mapping[str, Activity] | None
    last_arrivals: Mapping[str, float]

    @cached_property
    def tapes(self) -> Mapping[str, int]:
        """Of each version that has tapes on a node that serves, the most that one has."""
        return counts(node.report for node in self.nodes if node.state == cluster.NODE_STATE_READY)


def rate_of(target: Target, activity: Mapping[str, Activity] | None) -> float | None:
    """Arrivals a second of one version: a function counts all of its own, and versions beside the active one
    count theirs as well."""
    if activity is None:
        return None
    prefix = target.function.name + VERSION_MARK
    nothing = Activity(0, 0, 0.0, 1)
    if target.key:
        return activity.get(prefix + target.key, nothing).arrival_rate
    total = activity.get(target.function.name, nothing).arrival_rate
    return max(0.0, total - sum(each.arrival_rate for key, each in activity.items() if key.startswith(prefix)))

"""Putting a function to sleep: its instances above the least number are stopped now instead of after idling."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rouse_common.clock import Clock
from rouse_contracts import cluster, functions
from rouse_scaler.actions import Actions
from rouse_scaler.adapters.control import ControlPlane
from rouse_scaler.state import Registry

LOG = logging.getLogger(__name__)
REASON = "somebody put it to sleep"
SERVING = (cluster.INSTANCE_STATE_PENDING, cluster.INSTANCE_STATE_STARTING, cluster.INSTANCE_STATE_READY)


class Sleeps:
    def __init__(self, control: ControlPlane, actions: Actions, registry: Registry, clock: Clock) -> None:
        self._control, self._actions, self._registry, self._clock = control, actions, registry, clock

    async def sleep(self, function: str) -> int:
        """Takes instances out of the routing table and has them ended once what they execute has; how many.

        Until it is called again the function is not scaled above its least number, whatever was measured before.
        Raises NotFound FUNCTION_NOT_FOUND.
        """
        entry = self._registry.entry(function)
        async with entry.lock:
            described = await self._control.function(function)
            nodes = {node.node_id: node.coordinator_address for node in await self._control.nodes()}
            now = self._clock.now()
            surplus = _surplus(described)
            for instance in surplus:
                await self._actions.stop(instance, nodes.get(instance.node_id, ""), REASON)
            for known in self._registry.of_function(function):
                known.slept_at, known.changed_at = now, self._clock.monotonic()
        LOG.info("put to sleep function=%s stopped=%d", function, len(surplus))
        return len(surplus)


def _surplus(described: cluster.GetFunctionResponse) -> list[cluster.Instance]:
    """Instances beyond the least number of each version with traffic, and all of the others: those that are not
    ready yet go first, then the newest."""
    least = _least(described.function, described.versions)
    stopped = []
    for version in described.versions:
        own = [x for x in described.instances if x.version_id == version.version_id and x.state in SERVING]
        own.sort(key=lambda x: (x.state != cluster.INSTANCE_STATE_READY, x.created_at.ToNanoseconds()))
        stopped += own[least.get(version.version, 0) :]
    return stopped


def _least(function: functions.FunctionSummary, versions: Iterable[functions.FunctionVersion]) -> dict[int, int]:
    serving = {share.version for share in function.traffic} or {function.active_version.version}
    return {version.version: version.spec.scaling.min_instances for version in versions if version.version in serving}

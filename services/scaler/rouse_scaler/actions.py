"""Starting and stopping instances: two steps each, at cluster-manager and at the node's coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from rouse_common.errors import NotFound, RouseError, Unavailable
from rouse_contracts import cluster
from rouse_contracts.functions import FunctionVersion
from rouse_scaler import metrics
from rouse_scaler.adapters.control import ControlPlane
from rouse_scaler.adapters.coordinators import Coordinators

LOG = logging.getLogger(__name__)

# Stops under way at once; further ones wait for the next look.
MAX_STOPS = 256
# A node that does not take the instance may be followed by another one.
PLACES = 2


class Actions:
    """Carries out what was decided.

    Args:
        control: cluster-manager.
        coordinators: those of the nodes.
        grace_s: time that a stopped instance has for what it executes, seconds.
        tasks: the group that stops run in.
    """

    def __init__(
        self, control: ControlPlane, coordinators: Coordinators, grace_s: float, tasks: asyncio.TaskGroup
    ) -> None:
        self._control, self._coordinators, self._grace_s = control, coordinators, grace_s
        self._tasks = tasks
        self._stops: dict[str, asyncio.Task[None]] = {}

    async def start(self, function: str, version_id: str, reason: str, cause: str) -> str:
        """Places and starts one more instance; its id.

        Raises what ClusterService.CreateInstance documents; Unavailable START_FAILED where the nodes that it
        was placed on did not take it. Those instances are reported as FAILED.
        """
        for _ in range(PLACES):
            try:
                created = await self._control.create_instance(version_id, reason)
            except RouseError:
                metrics.STARTS.labels(cause, "refused").inc()
                raise
            instance_id, node_id = created.instance.instance_id, created.instance.node_id
            error = await self._hand_over(
                created.coordinator_address, created.instance, created.version, created.secrets
            )
            if error is None:
                metrics.STARTS.labels(cause, "started").inc()
                LOG.info(
                    "instance started function=%s instance=%s node=%s reason=%s", function, instance_id, node_id, reason
                )
                return instance_id
            metrics.STARTS.labels(cause, "failed").inc()
        raise Unavailable(
            "START_FAILED",
            f"no instance of function '{function}' could be started: {error}",
            function=function,
            node=node_id,
            attempts=PLACES,
        )

    async def resume(self, instance: cluster.Instance, address: str, version: FunctionVersion) -> None:
        """Hands a PENDING instance to its node once more, or reports it as FAILED.

        One that needs secrets is given up: their values are told once, to who places an instance.
        """
        if version.spec.secrets:
            await self._give_up(instance, "its start was interrupted, and its secrets are not kept for another one")
            return
        LOG.warning(
            "instance was never started, doing so now function=%s instance=%s node=%s",
            instance.function, instance.instance_id, instance.node_id,
        )  # fmt: skip
        await self._hand_over(address, instance, version, {})

    async def stop(self, instance: cluster.Instance, address: str, reason: str) -> None:
        """Takes an instance out of the routing table, then has its process ended in the background.

        In this order nobody routes to an instance that is being ended, but for requests that were on their
        way; their node refuses them as NO_INSTANCE, and the gateway wakes the function again.
        Raises RouseError where the first step fails; nothing was changed then.
        """
        if instance.instance_id in self._stops or len(self._stops) >= MAX_STOPS:
            return
        try:
            await self._control.report(instance.instance_id, cluster.INSTANCE_STATE_STOPPING, reason)
        except NotFound:
            return
        LOG.info(
            "instance stops function=%s instance=%s node=%s reason=%s",
            instance.function, instance.instance_id, instance.node_id, reason,
        )  # fmt: skip
        self.finish(instance, address, reason)

    def finish(self, instance: cluster.Instance, address: str, reason: str) -> None:
        """Ends the process of an instance that is out of the routing table, in the background."""
        if instance.instance_id in self._stops or len(self._stops) >= MAX_STOPS:
            return
        task = self._tasks.create_task(self._end(instance, address, reason))
        self._stops[instance.instance_id] = task
        task.add_done_callback(lambda _: self._stops.pop(instance.instance_id, None))

    def cancel(self) -> None:
        """Leaves the stops that are under way; they are taken up again by the next scaler."""
        for task in list(self._stops.values()):
            task.cancel()

    async def _hand_over(
        self, address: str, instance: cluster.Instance, version: FunctionVersion, secrets: Mapping[str, str]
    ) -> str | None:
        """Why the node's coordinator did not take the instance; None where it did."""
        try:
            await self._coordinators.start(address, instance.instance_id, version, secrets)
            return None
        except RouseError as error:
            reason = f"the coordinator of node {instance.node_id} at {address} did not take it: {error}"
        await self._give_up(instance, reason)
        return reason

    async def _give_up(self, instance: cluster.Instance, reason: str) -> None:
        LOG.warning(
            "instance not started function=%s instance=%s reason=%s", instance.function, instance.instance_id, reason
        )
        try:
            await self._control.report(instance.instance_id, cluster.INSTANCE_STATE_FAILED, reason)
        except RouseError as error:
            # It stays PENDING and is resumed by one of the next looks.
            LOG.warning("failure not reported instance=%s error=%s", instance.instance_id, error)

    async def _end(self, instance: cluster.Instance, address: str, reason: str) -> None:
        try:
            await self._coordinators.stop(address, instance.instance_id, self._grace_s, reason)
            # The coordinator has said so itself, unless it never knew the instance.
            await self._control.report(instance.instance_id, cluster.INSTANCE_STATE_ENDED, reason)
        except NotFound:
            metrics.STOPS.labels("stopped").inc()
        except RouseError as error:
            metrics.STOPS.labels("failed").inc()
            LOG.warning(
                "instance not stopped yet function=%s instance=%s error=%s",
                instance.function, instance.instance_id, error,
            )  # fmt: skip
        else:
            metrics.STOPS.labels("stopped").inc()

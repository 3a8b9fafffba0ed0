"""What cluster-manager says, in the words of the public contract."""

from __future__ import annotations

from rouse_contracts import cluster, functions
from rouse_gateway.state import Route

MAX_EVENTS = 20


def instance_summary(instance: cluster.Instance) -> functions.InstanceSummary:
    return functions.InstanceSummary(
        instance_id=instance.instance_id,
        version_id=instance.version_id,
        node_id=instance.node_id,
        state=cluster.InstanceState.Name(instance.state).removeprefix("INSTANCE_STATE_"),
        reason=instance.reason,
        isolation=instance.isolation,
        since=instance.since if instance.HasField("since") else None,
    )


def function_details(answer: cluster.GetFunctionResponse) -> functions.GetFunctionResponse:
    return functions.GetFunctionResponse(
        function=answer.function,
        versions=answer.versions,
        instances=[instance_summary(instance) for instance in answer.instances],
        residency=answer.residency,
        usage=answer.usage,
        events=answer.events[:MAX_EVENTS],
    )


def route_summary(route: Route) -> functions.FunctionSummary:
    """A function as the routing table has it."""
    active = route.versions.get("")
    return functions.FunctionSummary(
        name=route.name,
        state=functions.FunctionState.Name(route.state),
        reason=route.reason,
        active_version=active.contract if active else None,
        ready_instances=route.ready_instances,
        traffic=[functions.TrafficShare(version=share.version, percent=share.percent) for share in route.shares],
    )


def node_summary(node: cluster.Node, instances: int) -> functions.NodeSummary:
    return functions.NodeSummary(
        node_id=node.node_id,
        state=cluster.NodeState.Name(node.state).removeprefix("NODE_STATE_"),
        devices=node.report.devices,
        host_used_bytes=node.report.host_used_bytes,
        host_capacity_bytes=node.report.host_capacity_bytes,
        instances=instances,
        last_heartbeat=node.last_heartbeat if node.HasField("last_heartbeat") else None,
    )

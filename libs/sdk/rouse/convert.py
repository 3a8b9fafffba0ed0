"""Contract messages to the public values of `rouse.types`, and back for a function's spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rouse import types
from rouse.errors import InvalidArgument
from rouse_contracts import functions as contract
from rouse_contracts import specs

_FORMATS = {
    contract.ARTEFACT_FORMAT_HUGGING_FACE: "HUGGING_FACE",
    contract.ARTEFACT_FORMAT_PYTHON: "PYTHON",
    contract.ARTEFACT_FORMAT_TORCH_EXPORT: "TORCH_EXPORT",
}


def version(message: contract.FunctionVersion) -> types.Version:
    spec = message.spec
    objective = types.Objective(spec.objective.latency_ms, spec.objective.percentile)
    return types.Version(
        version_id=message.version_id,
        version=message.version,
        artefact_digest=message.artefact_digest,
        format=_FORMATS.get(message.format, "UNSPECIFIED"),
        weights_bytes=message.weights_bytes,
        artefact_bytes=message.artefact_bytes,
        created_at=time(message, "created_at"),
        handler=spec.handler,
        description=spec.description,
        options=dict(spec.options),
        inputs=tensors(spec.signature.inputs),
        outputs=tensors(spec.signature.outputs),
        scaling=types.Scaling(
            spec.scaling.min_instances,
            spec.scaling.max_instances,
            spec.scaling.idle_timeout.ToMilliseconds() / 1000,
        ),
        resources=types.Resources(
            spec.resources.working_memory_bytes, spec.resources.host_memory_limit_bytes, spec.resources.threads
        ),
        objective=objective if spec.HasField("objective") else None,
        queue_capacity=spec.queue_capacity,
        batching=(
            types.Batching(spec.batching.max_batch_size, spec.batching.max_delay_us)
            if specs.is_batchable(spec)
            else None
        ),
        limits=types.Limits(spec.limits.max_concurrent_requests),
        decoupled=spec.decoupled,
        pinned=spec.pinned,
        shared=spec.shared,
        environment=dict(spec.environment),
        secrets={reference.variable: reference.secret for reference in spec.secrets},
        addresses=_addresses(message),
        execution=specs.EXECUTIONS.get(spec.execution, "unknown"),
        isolation=specs.ISOLATIONS.get(spec.isolation, "unknown"),
        tapes=specs.uses_tapes(spec),
    )


def _addresses(message: contract.FunctionVersion) -> types.AddressRange | None:
    if not message.HasField("addresses"):
        return None
    found = message.addresses
    return types.AddressRange(found.base, found.weights_bytes, found.state_bytes, found.scratch_bytes)


def function(message: contract.FunctionSummary) -> types.Function:
    traffic = {share.version: share.percent for share in message.traffic}
    if not traffic and message.HasField("active_version"):
        traffic = {message.active_version.version: 100}
    return types.Function(
        name=message.name,
        state=contract.FunctionState.Name(message.state).removeprefix("FUNCTION_STATE_"),
        reason=message.reason,
        ready_instances=message.ready_instances,
        version=version(message.active_version) if message.HasField("active_version") else None,
        tenant=message.tenant,
        traffic=traffic,
    )


def description(message: contract.GetFunctionResponse) -> types.Description:
    return types.Description(
        function=function(message.function),
        versions=tuple(version(v) for v in message.versions),
        instances=tuple(
            types.Instance(i.instance_id, i.version_id, i.node_id, i.state, i.reason, time(i, "since"), i.isolation)
            for i in message.instances
        ),
        residency=tuple(residency(r) for r in message.residency),
        usage=usage(message.usage),
        events=tuple(types.Event(time(e, "at"), e.kind, e.subject, e.message) for e in message.events),
    )


def usage(message: contract.UsageSummary) -> types.Usage:
    return types.Usage(
        message.requests, message.failures, message.device_ms, message.swap_ins, message.swap_ms, message.host_ms,
        message.host_byte_s, message.billed_ms,
    )  # fmt: skip


def moment(when: datetime | None, field: str) -> Timestamp | None:
    """A time as a message. Raises InvalidArgument BAD_PERIOD for one without a time zone."""
    if when is None:
        return None
    if when.tzinfo is None:
        raise InvalidArgument(f"{field}={when!r} has no time zone: say datetime(..., tzinfo=UTC)", reason="BAD_PERIOD")
    stamp = Timestamp()
    stamp.FromDatetime(when)
    return stamp


def residency(message: contract.Residency) -> types.Residency:
    return types.Residency(
        version_id=message.version_id,
        node=message.node_id,
        state=message.state,
        device=message.device,
        size_bytes=message.size_bytes,
        reason=message.reason,
        swap_ins=message.swap_in_count,
        since=time(message, "since"),
        tapes=message.tapes,
        replays=message.replays,
        eager_reason=message.eager_reason,
        heavy=message.heavy,
        heaviness=message.heaviness,
        measured_working_bytes=message.measured_working_bytes,
    )


def timings(message: contract.Timings) -> types.Timings:
    return types.Timings(message.held_ms, message.queue_ms, message.swap_ms, message.execute_ms, message.total_ms)


def span(message: contract.Span) -> types.Span:
    return types.Span(
        trace_id=message.trace_id,
        span_id=message.span_id,
        parent_span_id=message.parent_span_id,
        name=message.name,
        service=message.service,
        start_unix_nanos=message.start_unix_nanos,
        end_unix_nanos=message.end_unix_nanos,
        attributes=dict(message.attributes),
        error=message.error,
    )


def status(message: contract.GetStatusResponse) -> types.Status:
    return types.Status(
        mesh_version=message.mesh_version,
        functions=message.functions,
        services=tuple(types.Service(s.name, s.address, s.state) for s in message.services),
        nodes=tuple(_node(n) for n in message.nodes),
        http_address=message.http_address,
    )


def _node(message: contract.NodeSummary) -> types.Node:
    return types.Node(
        node=message.node_id,
        state=message.state,
        devices=tuple(_device(d) for d in message.devices),
        host_used_bytes=message.host_used_bytes,
        host_capacity_bytes=message.host_capacity_bytes,
        instances=message.instances,
        last_heartbeat=time(message, "last_heartbeat"),
    )


def _device(message: contract.DeviceSummary) -> types.Device:
    return types.Device(
        name=message.name,
        kind=message.kind,
        capacity_bytes=message.capacity_bytes,
        mapped_bytes=message.mapped_bytes,
        reserved_bytes=message.reserved_bytes,
        free_bytes=message.capacity_bytes - message.mapped_bytes - message.reserved_bytes,
        executing=message.executing,
        swap_ins=message.swap_in_count,
        evictions=message.eviction_count,
        residents=tuple(residency(r) for r in message.residents),
    )


def spec_message(
    name: str,
    *,
    handler: str = "",
    options: Mapping[str, str] | None = None,
    inputs: Iterable[types.TensorSpec] = (),
    outputs: Iterable[types.TensorSpec] = (),
    scaling: types.Scaling | None = None,
    resources: types.Resources | None = None,
    objective: types.Objective | None = None,
    queue_capacity: int = 0,
    description: str = "",
    batching: types.Batching | None = None,
    limits: types.Limits | None = None,
    decoupled: bool = False,
    pinned: bool = False,
    shared: bool = False,
    environment: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    execution: str = "",
    isolation: str = "",
    tapes: bool | None = None,
) -> contract.FunctionSpec:
    """A FunctionSpec; what is None or empty is left to the mesh's defaults."""
    message = contract.FunctionSpec(
        name=name, handler=handler, options=options, queue_capacity=queue_capacity, description=description,
        decoupled=decoupled, pinned=pinned, shared=shared, environment=environment, tapes=tapes,
        execution=specs.execution_of(execution), isolation=specs.isolation_of(isolation),
    )  # fmt: skip
    for variable, secret in (secrets or {}).items():
        message.secrets.add(variable=variable, secret=secret)
    for field, tensors in (("inputs", inputs), ("outputs", outputs)):
        for spec in tensors:
            getattr(message.signature, field).add(name=spec.name, datatype=spec.datatype, shape=spec.shape)
    if scaling is not None:
        message.scaling.CopyFrom(
            contract.Scaling(
                min_instances=scaling.min_instances,
                max_instances=scaling.max_instances,
                idle_timeout=duration(scaling.idle_timeout_s),
            )
        )
    if resources is not None:
        message.resources.CopyFrom(
            contract.Resources(
                working_memory_bytes=resources.working_memory_bytes,
                host_memory_limit_bytes=resources.host_memory_limit_bytes,
                threads=resources.threads,
            )
        )
    if objective is not None:
        message.objective.CopyFrom(contract.Objective(latency_ms=objective.latency_ms, percentile=objective.percentile))
    if batching is not None:
        message.batching.CopyFrom(
            contract.Batching(max_batch_size=batching.max_batch_size, max_delay_us=batching.max_delay_us)
        )
    if limits is not None:
        message.limits.CopyFrom(contract.Limits(max_concurrent_requests=limits.max_concurrent_requests))
    return message


def tensors(messages: Iterable[contract.TensorSpec]) -> tuple[types.TensorSpec, ...]:
    """The inputs or outputs of a signature."""
    return tuple(types.TensorSpec(t.name, t.datatype, tuple(t.shape)) for t in messages)


def duration(seconds: float) -> Duration:
    """Seconds as a message, to the millisecond."""
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def time(message: Any, field: str) -> datetime | None:
    """A message's timestamp in UTC; None where it has none."""
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    return stamp.ToDatetime(tzinfo=UTC)

"""Rows of the database as messages of the contracts, and back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.timestamp_pb2 import Timestamp

from rouse_cluster_manager.state import InstanceView
from rouse_contracts import cluster, functions
from rouse_contracts.repository import Artefact as ArtefactMessage
from rouse_policy import billing
from rouse_store import models
from rouse_store.repositories.usage import UsageSum
from rouse_store.text import clean

FORMATS = {
    "HUGGING_FACE": functions.ARTEFACT_FORMAT_HUGGING_FACE,
    "PYTHON": functions.ARTEFACT_FORMAT_PYTHON,
    "TORCH_EXPORT": functions.ARTEFACT_FORMAT_TORCH_EXPORT,
}
FORMAT_NAMES = {value: name for name, value in FORMATS.items()}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def moment(stamp: Timestamp) -> datetime:
    """A timestamp as a time; 1970 where it is none."""
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        return EPOCH


def bounded(count: int) -> int:
    """An unsigned 64-bit count as far as a column holds it."""
    return min(count, models.MAX_BYTES)


def spec_columns(spec: functions.FunctionSpec) -> dict[str, Any]:
    return MessageToDict(spec, preserving_proto_field_name=True)


def artefact_columns(artefact: ArtefactMessage, now: datetime) -> dict[str, Any]:
    return {
        "digest": artefact.digest,
        "format": FORMAT_NAMES[artefact.format],
        "artefact_bytes": bounded(artefact.size_bytes),
        "weights_bytes": bounded(artefact.layout.image_bytes),
        "architecture": clean(artefact.architecture),
        "signature": MessageToDict(artefact.signature, preserving_proto_field_name=True),
        "created_at": now,
    }


def addresses_message(row: models.AddressRange) -> functions.AddressRange:
    return functions.AddressRange(
        base=row.base, weights_bytes=row.weights_bytes, state_bytes=row.state_bytes, scratch_bytes=row.scratch_bytes
    )


def version_message(row: models.Version) -> functions.FunctionVersion:
    """A version that was read with its artefact."""
    message = functions.FunctionVersion(
        version_id=row.version_id,
        version=row.version,
        artefact_digest=row.artefact_digest,
        format=FORMATS[row.artefact.format],
        weights_bytes=row.artefact.weights_bytes,
        artefact_bytes=row.artefact.artefact_bytes,
        created_at=timestamp(row.created_at),
    )
    if row.artefact.addresses is not None:
        message.addresses.CopyFrom(addresses_message(row.artefact.addresses))
    # A field that a newer version of this service wrote is no reason not to serve.
    ParseDict(row.spec, message.spec, ignore_unknown_fields=True)
    return message


def instance_message(row: models.Instance) -> cluster.Instance:
    """An instance that was read with its version and function."""
    return cluster.Instance(
        instance_id=row.instance_id,
        version_id=row.version_id,
        function=row.version.function.name,
        node_id=row.node_id,
        state=f"INSTANCE_STATE_{row.state}",
        reason=row.reason,
        created_at=timestamp(row.created_at),
        since=timestamp(row.since),
        isolation=row.isolation,
    )


def instance_view(row: models.Instance) -> InstanceView:
    return InstanceView(row.instance_id, row.state, row.reason, row.created_at, row.ready_at is not None)


def event_message(row: models.Event) -> functions.Event:
    return functions.Event(at=timestamp(row.at), kind=row.kind, subject=row.subject, message=row.message)


def usage_message(total: UsageSum) -> functions.UsageSummary:
    return functions.UsageSummary(
        requests=total.requests, failures=total.failures, device_ms=total.device_ms, swap_ins=total.swap_ins,
        swap_ms=total.swap_ms, host_ms=total.host_ms, host_byte_s=total.host_byte_s,
        billed_ms=billing.billed_ms(total.device_ms, total.host_ms, billing.Settings()),
    )  # fmt: skip


def residency_message(row: models.Placement) -> functions.Residency:
    return functions.Residency(
        version_id=row.version_id,
        node_id=row.node_id,
        state=row.state,
        device=row.device,
        size_bytes=row.size_bytes,
        reason=row.reason,
        swap_in_count=row.swap_in_count,
        since=timestamp(row.since),
        tapes=row.tapes,
        replays=row.replays,
        eager_reason=row.eager_reason,
        heavy=row.heavy,
        heaviness=row.heaviness,
        measured_working_bytes=row.measured_working_bytes,
    )


def placement_row(node_id: str, message: functions.Residency) -> models.Placement:
    return models.Placement(
        node_id=node_id,
        version_id=message.version_id,
        device=message.device,
        state=message.state,
        size_bytes=bounded(message.size_bytes),
        reason=clean(message.reason),
        swap_in_count=bounded(message.swap_in_count),
        since=moment(message.since),
        tapes=message.tapes,
        replays=bounded(message.replays),
        eager_reason=clean(message.eager_reason),
        heavy=message.heavy,
        heaviness=clean(message.heaviness),
        measured_working_bytes=bounded(message.measured_working_bytes),
    )


def node_message(row: models.Node) -> cluster.Node:
    """A node that was read with its devices."""
    return cluster.Node(
        node_id=row.node_id,
        incarnation=row.incarnation,
        router_address=row.router_address,
        link_address=row.link_address,
        device_address=row.device_address,
        coordinator_address=row.coordinator_address,
        devices=[
            cluster.DeviceInfo(name=device.name, kind=device.kind, capacity_bytes=device.capacity_bytes)
            for device in row.devices
        ],
        state=f"NODE_STATE_{row.state}",
        last_heartbeat=timestamp(row.last_heartbeat),
    )

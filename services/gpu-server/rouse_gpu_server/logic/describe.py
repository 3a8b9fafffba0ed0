"""The pool as the contract shows it."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.timestamp_pb2 import Timestamp

from rouse_contracts.device import DescribeDevicesResponse
from rouse_contracts.functions import DeviceSummary, Residency
from rouse_gpu_server import metrics
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Device, Model, Resident
from rouse_gpu_server.state.residency import Machine, wire_name


def describe(
    pool: Pool,
    node_id: str,
    tapes: Callable[[Model], int],
    *,
    host_used: int,
    host_capacity: int,
    disk_used: int,
) -> DescribeDevicesResponse:
    """Devices with their ledgers, and every version of the node with where it is, since when and why.

    Args:
        tapes: how many of a version's tapes the node has.
    """
    answer = DescribeDevicesResponse(
        host_used_bytes=host_used,
        host_capacity_bytes=host_capacity,
        disk_used_bytes=disk_used,
        waiting=len(pool.waiting),
    )
    for device in pool.devices.values():
        answer.devices.append(_device(pool, device, node_id))
    for model in pool.models.values():
        residents = pool.residents_of(model.version_id)
        pinned = pool.is_pinned(model)
        shown = [_on_device(each, node_id, pinned) for each in residents]
        for row in shown or [_row(model, node_id, _beside_devices(model), "")]:
            row.tapes, row.replays, row.eager_reason = tapes(model), model.replays, model.eager_reason
            row.heavy, row.heaviness = _weight(model, row.device)
            row.measured_working_bytes = model.measured_bytes
            answer.residency.append(row)
    return answer


def _beside_devices(model: Model) -> Machine:
    """Of a version on no device: why it was evicted, unless something has happened to its artefact since."""
    own, left = model.artefact.machine, model.left
    return left if left is not None and left.state is own.state and left.since >= own.since else own


def _weight(model: Model, device: str) -> tuple[bool, str]:
    """Whether a model is heavy on a device, or where that is empty on any, and why; nothing before it was measured."""
    known = [(name, weight) for name, weight in model.weights_on.items() if device in ("", name)]
    return any(weight.heavy for _, weight in known), "; ".join(f"{name}: {weight.reason}" for name, weight in known)


def _device(pool: Pool, device: Device, node_id: str) -> DeviceSummary:
    return DeviceSummary(
        name=device.name,
        kind=device.kind,
        capacity_bytes=device.ledger.capacity_bytes,
        mapped_bytes=device.ledger.mapped_bytes,
        reserved_bytes=device.ledger.reserved_bytes,
        residents=[_on_device(r, node_id, pool.is_pinned(r.model)) for r in device.residents.values()],
        swap_in_count=device.swap_ins,
        eviction_count=device.evictions,
        executing=device.lease.model.function if device.lease is not None else "",
    )


def _on_device(resident: Resident, node_id: str, pinned: bool) -> Residency:
    row = _row(resident.model, node_id, resident.machine, resident.device.name)
    if resident.brought not in ("", row.reason):
        row.reason += f"; brought {resident.brought}"
    if pinned:
        row.reason = f"pinned; {row.reason}"
    return row


def _row(model: Model, node_id: str, machine: Machine, device: str) -> Residency:
    reason = machine.reason
    if model.unbound and not device:
        reason = f"bound to no device (early binding): {model.unbound}; {reason}"
    since = Timestamp()
    since.FromMilliseconds(round(machine.since * 1000))
    return Residency(
        version_id=model.version_id,
        node_id=node_id,
        state=wire_name(machine.state),
        device=device,
        size_bytes=model.size_bytes,
        reason=reason,
        swap_in_count=model.swap_ins,
        since=since,
    )


def export_gauges(pool: Pool) -> None:
    """Binds the gauges to the pool, read when they are scraped."""
    metrics.WAITING.set_function(lambda: len(pool.waiting))
    for device in pool.devices.values():
        metrics.INSTANCE_CAPACITY.labels(device.name).set(device.ledger.capacity_bytes)
        metrics.INSTANCE_USED.labels(device.name).set_function(
            lambda d=device: d.ledger.mapped_bytes + d.ledger.reserved_bytes  # type: ignore[misc]
        )
        metrics.MODELS_LOADED.labels(device.name).set_function(lambda d=device: len(d.residents))  # type: ignore[misc]

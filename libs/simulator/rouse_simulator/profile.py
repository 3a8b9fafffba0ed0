"""What a machine and its models cost, from a file: the tables of a paper, or what was measured on a machine.

The file is one JSON object; `profiles/torpor-v100.json` shows every field, `source` says in words where each is from.
Times end in _ms or _s, sizes in _bytes, rates in _bytes_s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rouse_policy.topology import Topology


class ProfileError(ValueError):
    """A profile that cannot be used; says which file, which field and what was wanted."""


@dataclass(frozen=True)
class Model:
    """A model as it behaves on one kind of device.

    Args:
        weights_bytes: what a swap copies.
        held_bytes: what else it keeps on a device for as long as its weights are there.
        native_s, resident_s: a request natively; and through an executor with the weights there.
        swap_host_s, swap_link_s: a request whose weights are swapped in while it runs, with nothing else on the link.
        cold_start_s: a new process, until it serves.
        deadline_s: within which a request is to be answered.
    """

    name: str
    kind: str
    weights_bytes: int
    held_bytes: int
    native_s: float
    resident_s: float
    swap_host_s: float
    swap_link_s: float
    cold_start_s: float
    deadline_s: float

    @property
    def resident_bytes(self) -> int:
        """What it takes of a device that all runtimes share."""
        return self.weights_bytes + self.held_bytes


@dataclass(frozen=True)
class NodeProfile:
    """A node.

    Args:
        device_bytes, runtime_bytes: a device's memory, and what a process's runtime takes of it.
        pool_limit_bytes: what late binding takes of a device for models at most.
        native_places: processes with a runtime of their own that a device takes at most.
        host_bytes: memory for host copies.
        flow_bytes_s, switch_bytes_s: what one copy from the host reaches, and all over one switch together.
        tail_s: computing that is left when the last byte of a swap has arrived.
        block_s, block_bytes: allocating a block by the driver, for Torpor-Block.
        way_s: from the router to a function and back, during which the router sends the device nothing else.
    """

    devices: tuple[str, ...]
    device_bytes: int
    runtime_bytes: int
    pool_limit_bytes: int
    native_places: int
    host_bytes: int
    topology: Topology
    flow_bytes_s: float
    switch_bytes_s: float
    tail_s: float
    block_s: float
    block_bytes: int
    way_s: float

    @property
    def pool_bytes(self) -> int:
        """What a device has for models when they share one runtime."""
        return min(self.device_bytes - self.runtime_bytes, self.pool_limit_bytes)

    def alone(self, device: str) -> NodeProfile:
        """The same node with one device only."""
        return replace(self, devices=(device,), topology=Topology())


@dataclass(frozen=True)
class Profile:
    """A kind of node and the models that run there."""

    name: str
    models: tuple[Model, ...]
    node: NodeProfile

    def model(self, name: str) -> Model:
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(f"profile {self.name} has no model '{name}'; it has {', '.join(m.name for m in self.models)}")

    def with_deadlines(self, deadlines_s: Mapping[str, float]) -> Profile:
        """The same with other deadlines, by kind of model."""
        return replace(self, models=tuple(replace(m, deadline_s=deadlines_s[m.kind]) for m in self.models))

    def with_way(self, way_s: float) -> Profile:
        """The same with another way between router and functions."""
        return replace(self, node=replace(self.node, way_s=way_s))

    def with_held(self, factor: float) -> Profile:
        """The same with what models hold beside their weights multiplied: for asking how much hangs on it."""
        return replace(self, models=tuple(replace(m, held_bytes=round(m.held_bytes * factor)) for m in self.models))


def load(path: Path) -> Profile:
    """Reads a profile. Raises ProfileError."""
    try:
        return _profile(json.loads(path.read_text()))
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"profile {path}: {type(error).__name__} {error}; see profiles/torpor-v100.json") from error


def torpor() -> Profile:
    """The paper's machine and models."""
    return load(Path(str(resources.files("rouse_simulator") / "profiles" / "torpor-v100.json")))


def _profile(data: Mapping[str, Any]) -> Profile:
    models = tuple(_model(entry, data["deadline_ms"]) for entry in data["models"])
    if not models:
        raise ValueError("models: want at least one")
    return Profile(str(data["name"]), models, _node(data["node"]))


def _model(entry: Mapping[str, Any], deadlines_ms: Mapping[str, float]) -> Model:
    times = {f"{name}_s": _positive(entry, f"{name}_ms") / 1000 for name in ("native", "resident", "swap_host")}
    return Model(
        name=str(entry["name"]),
        kind=str(entry["kind"]),
        weights_bytes=int(_positive(entry, "weights_bytes")),
        held_bytes=int(entry["held_bytes"]),
        swap_link_s=_positive(entry, "swap_link_ms") / 1000,
        cold_start_s=_positive(entry, "cold_start_s"),
        deadline_s=deadlines_ms[entry["kind"]] / 1000,
        **times,
    )


def _node(entry: Mapping[str, Any]) -> NodeProfile:
    links = {}
    for pair, rate in entry["links"].items():
        one, _, other = pair.partition("-")
        links[min(one, other), max(one, other)] = float(rate)
    topology = Topology(tuple(tuple(group) for group in entry["switches"]), links)
    devices = tuple(entry["devices"])
    topology.check(devices)
    return NodeProfile(
        devices=devices,
        device_bytes=int(_positive(entry, "device_bytes")),
        runtime_bytes=int(entry["runtime_bytes"]),
        pool_limit_bytes=int(_positive(entry, "pool_limit_bytes")),
        native_places=int(_positive(entry, "native_places")),
        host_bytes=int(_positive(entry, "host_bytes")),
        topology=topology,
        flow_bytes_s=_positive(entry, "flow_bytes_s"),
        switch_bytes_s=_positive(entry, "switch_bytes_s"),
        tail_s=float(entry["tail_ms"]) / 1000,
        block_s=float(entry["block_ms"]) / 1000,
        block_bytes=int(_positive(entry, "block_bytes")),
        way_s=float(entry["way_ms"]) / 1000,
    )


def _positive(entry: Mapping[str, Any], name: str) -> float:
    value = float(entry[name])
    if not value > 0:
        raise ValueError(f"{name} is {value}; want more than 0")
    return value

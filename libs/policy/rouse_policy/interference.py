"""On which idle device a request runs and where its model comes from: Torpor's Algorithm 1 (5.3), and what it is
compared with.

Algorithm 1: an idle device that holds the model; else, where a busy one holds it, the pair of an idle device and a
holder with the fastest direct link; else from the host to a device whose switch no other device loads over, else to one
whose neighbours load light models only, else to any. Where the paper says "any", the first of `available` is taken:
the caller puts the one that it likes best first. A pair without a direct link is no pair: then it is the host.

`RANDOM` is the paper's Torpor-Random: an idle device that holds the model, else an idle one by chance, always from the
host. `BOUND` is early binding with remoting (NonSwap in Figure 14): the one device that the model was placed on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rouse_policy.topology import Topology

HOST = "host"
_MASK = (1 << 64) - 1


class Mode(Enum):
    """How a device is chosen."""

    INTERFERENCE = "INTERFERENCE"
    RANDOM = "RANDOM"
    BOUND = "BOUND"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One request and the devices.

    Args:
        version: the model that it needs.
        available: idle devices, the preferred first.
        holders: devices that hold the model whole, idle or busy.
        loading: devices that load from the host now, with whether what they load is heavy.
        bound: the device that the model was placed on; empty where it has none.
    """

    version: str
    available: tuple[str, ...]
    holders: tuple[str, ...]
    loading: Mapping[str, bool] = field(default_factory=dict)
    bound: str = ""


@dataclass(frozen=True)
class Settings:
    """Args:
    mode: how a device is chosen.
    topology: the node's links.
    """

    mode: Mode = Mode.INTERFERENCE
    topology: Topology = field(default_factory=Topology)


@dataclass(frozen=True, slots=True)
class State:
    """The state of the generator that RANDOM draws from; begin with the seed."""

    seed: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The device, None where the request has to wait; where the model comes from (HOST or a device, empty where it is
    there already); and why."""

    device: str | None
    source: str
    reason: str


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Names device and source for one request. `now` does not matter to it."""
    available = snapshot.available
    if not available:
        return Decision(None, "", "no device is idle"), state
    if settings.mode is Mode.BOUND:
        if snapshot.bound not in available:
            return Decision(None, "", f"bound to {snapshot.bound or 'no device'}, which is not idle"), state
        source = "" if snapshot.bound in snapshot.holders else HOST
        return Decision(snapshot.bound, source, f"bound to {snapshot.bound}"), state
    for device in available:
        if device in snapshot.holders:
            return Decision(device, "", f"resident on idle {device}"), state
    if settings.mode is Mode.RANDOM:
        number, state = _draw(state)
        device = available[number % len(available)]
        return Decision(device, HOST, f"{device}, by chance of {len(available)} idle ones"), state
    topology = settings.topology
    pairs = [(topology.bandwidth(g, m), g, m) for g in available for m in snapshot.holders]
    if pairs:
        # The first of the fastest: `available` is in the order of preference.
        rate, device, holder = max(pairs, key=lambda pair: pair[0])
        if rate > 0:
            return Decision(device, holder, f"{device} from busy {holder} at {rate / 1e9:.3g} GB/s"), state
    device, why = host_target(available, snapshot.loading, topology)
    return Decision(device, HOST, f"{device} from the host: {why}"), state


def host_target(available: tuple[str, ...], loading: Mapping[str, bool], topology: Topology) -> tuple[str, str]:
    """Lines 13 to 17: the device that a load from the host disturbs least, and why it is that one."""
    scored = [(pressure(device, loading, topology), device) for device in available]
    score, device = min(scored, key=lambda pair: pair[0])
    return device, ("no neighbour loads", "its neighbour loads a light model", "every neighbour loads")[score]


def pressure(device: str, loading: Mapping[str, bool], topology: Topology) -> int:
    """0 where no neighbour of the device loads from the host, 1 where only light models are loaded, 2 else."""
    beside = [loading[other] for other in topology.neighbours(device) if other in loading]
    return 0 if not beside else 1 if not any(beside) else 2


def _draw(state: State) -> tuple[int, State]:
    """SplitMix64 (Steele, Lea and Flood 2014): the next number, and the state behind it."""
    seed = (state.seed + 0x9E3779B97F4A7C15) & _MASK
    mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31), State(seed)

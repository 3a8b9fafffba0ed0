"""Decisions as lines of JSON, and their replay: golden traces.

A line holds everything that a decision was made from, so it can be made again: by the same code with the same outcome,
by changed code with a difference that somebody has to bless. Values are written by their types: dataclasses as objects,
enums by name, infinity and the like as text.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from rouse_policy import eviction, interference, pool, queueing, scheduling, spreading, tiering

# The policies whose decisions are recorded: their decide, and the types of what it takes and gives.
POLICIES: Mapping[str, tuple[Any, type, type, type, type]] = {
    "queueing": (queueing.decide, queueing.Snapshot, queueing.State, queueing.Settings, queueing.Decision),
    "scheduling": (scheduling.decide, pool.Snapshot, pool.State, pool.Settings, pool.Decision),
    "eviction": (eviction.decide, eviction.Snapshot, eviction.State, eviction.Settings, eviction.Decision),
    "interference": (
        interference.decide, interference.Snapshot, interference.State, interference.Settings, interference.Decision,
    ),
    "spreading": (spreading.decide, spreading.Snapshot, spreading.State, spreading.Settings, spreading.Decision),
    "tiering": (tiering.decide, tiering.Snapshot, tiering.State, tiering.Settings, tiering.Decision),
}  # fmt: skip


class GoldenError(ValueError):
    """A line that is no decision of ours; says what was wanted where."""


@dataclass(frozen=True)
class Replay:
    """A recorded decision and the one that today's policy makes from the same; both as they would be written."""

    policy: str
    recorded: Any
    decided: Any

    @property
    def same(self) -> bool:
        return bool(self.recorded == self.decided)


def line(policy: str, snapshot: Any, state: Any, settings: Any, now: float, decision: Any) -> str:
    """One decision as a line of JSON, without its end; `state` as it was before."""
    entry = {
        "policy": policy,
        "now": encode(now),
        "snapshot": encode(snapshot),
        "state": encode(state),
        "settings": encode(settings),
        "decision": encode(decision),
    }
    return json.dumps(entry, separators=(",", ":"), allow_nan=False)


def replay(text: str) -> Replay:
    """Makes the decision of a line again. Raises GoldenError."""
    try:
        entry = json.loads(text)
        decide, snapshot, state, settings, _ = POLICIES[entry["policy"]]
        now = decode(float, entry["now"])
        decision, _ = decide(
            decode(snapshot, entry["snapshot"]), decode(state, entry["state"]), decode(settings, entry["settings"]), now
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GoldenError(f"{type(error).__name__} {error} in {text[:80]}") from error
    return Replay(entry["policy"], entry["decision"], encode(decision))


def encode(value: Any) -> Any:
    """A value of ours as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        # Keys may be pairs of names, so a mapping is a list of pairs.
        return [[encode(key), encode(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(encode(item) for item in value)
    return value


def decode(kind: Any, value: Any) -> Any:
    """JSON as a value of a type. Raises GoldenError, KeyError or TypeError where it is none."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return decode(kind, value)
    if origin is not None:
        return _decode_many(origin, arguments, value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        hints = typing.get_type_hints(kind)
        # What a newer policy has besides takes its default.
        return kind(**{name: decode(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[value]
    if kind is float:
        return float(value)
    if kind in (int, str, bool) and isinstance(value, kind):
        return value
    raise GoldenError(f"want {kind}, got {value!r}")


def _decode_many(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        return tuple(decode(part, item) for part, item in zip(arguments, value, strict=True))
    if origin in (tuple, Sequence, list):
        return tuple(decode(arguments[0], item) for item in value)
    if origin is Mapping:
        return {decode(arguments[0], key): decode(arguments[1], item) for key, item in value}
    if origin is frozenset:
        return frozenset(decode(arguments[0], item) for item in value)
    raise GoldenError(f"want {origin}, got {value!r}")

"""Life of a model on a node: ABSENT → DISK → HOST → SWAPPING_IN → DEVICE ⇄ EXECUTING → (evicted) HOST.

One table. An artefact goes through its first three states once on the node; each copy on a device starts
from there with a machine of its own.
"""

from __future__ import annotations

from enum import Enum

from rouse_common.statemachine import StateMachine


class Tier(Enum):
    """Where weights are."""

    ABSENT = "ABSENT"
    DISK = "DISK"
    HOST = "HOST"
    SWAPPING_IN = "SWAPPING_IN"
    DEVICE = "DEVICE"
    EXECUTING = "EXECUTING"
    # Its executors are being detached; until then its memory is on the device and answered as DEVICE.
    EVICTING = "EVICTING"


class Step(Enum):
    """What happens to them."""

    FETCHED = "FETCHED"
    IMAGED = "IMAGED"
    IMAGE_DROPPED = "IMAGE_DROPPED"
    REMOVED = "REMOVED"
    SWAP_IN = "SWAP_IN"
    SWAPPED_IN = "SWAPPED_IN"
    SWAP_FAILED = "SWAP_FAILED"
    EXECUTE = "EXECUTE"
    FINISHED = "FINISHED"
    EVICT = "EVICT"
    EVICTED = "EVICTED"


TABLE = {
    (Tier.ABSENT, Step.FETCHED): Tier.DISK,
    (Tier.DISK, Step.IMAGED): Tier.HOST,
    (Tier.HOST, Step.IMAGE_DROPPED): Tier.DISK,
    (Tier.DISK, Step.REMOVED): Tier.ABSENT,
    (Tier.DISK, Step.SWAP_IN): Tier.SWAPPING_IN,
    (Tier.HOST, Step.SWAP_IN): Tier.SWAPPING_IN,
    (Tier.SWAPPING_IN, Step.SWAPPED_IN): Tier.DEVICE,
    (Tier.SWAPPING_IN, Step.SWAP_FAILED): Tier.HOST,
    (Tier.DEVICE, Step.EXECUTE): Tier.EXECUTING,
    (Tier.EXECUTING, Step.FINISHED): Tier.DEVICE,
    (Tier.DEVICE, Step.EVICT): Tier.EVICTING,
    (Tier.EVICTING, Step.EVICTED): Tier.HOST,
}

Machine = StateMachine[Tier, Step]


def machine(name: str, state: Tier, reason: str, now: float) -> Machine:
    """A machine that starts in `state`; times in seconds since 1970."""
    return StateMachine(name, TABLE, state, reason, now)


def wire_name(state: Tier) -> str:
    """The state as the contract calls it."""
    return Tier.DEVICE.value if state is Tier.EVICTING else state.value

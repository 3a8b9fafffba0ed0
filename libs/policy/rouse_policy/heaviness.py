"""Which models are heavy: those whose inference a swap from the host slows down (Torpor, 5.3 and Table 4).

Measured for each model and device, never set by hand: the time of a request whose weights were swapped in while it ran,
with no other swap beside it, over that of a request whose weights were there. The paper marks one of its eight models
(Bert-qa, 144 ms against 43 ms) and gives no threshold; ours is a setting. It leaves those light whose swap hides behind
the computing or costs about as much again (ResNet-101, the next of the paper's, is at 1.57).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measured:
    """Moving averages of a model's requests on one kind of device, seconds; None before the first of its kind."""

    resident_s: float | None = None
    swapped_s: float | None = None


@dataclass(frozen=True)
class Settings:
    """Args:
    threshold: from this ratio of swapped to resident time on a model is heavy.
    smoothing: weight of the newest measurement, 0 to 1.
    """

    threshold: float = 2.0
    smoothing: float = 0.2


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the model is heavy, the ratio (None where it is not known yet), and why."""

    heavy: bool
    ratio: float | None
    reason: str


def learn(measured: Measured, seconds: float, swapped: bool, settings: Settings) -> Measured:
    """The averages after one more request; `swapped`: its weights came from the host while it ran."""
    old = measured.swapped_s if swapped else measured.resident_s
    new = seconds if old is None else old + settings.smoothing * (seconds - old)
    return Measured(measured.resident_s, new) if swapped else Measured(new, measured.swapped_s)


def decide(snapshot: Measured, state: None, settings: Settings, now: float) -> tuple[Decision, None]:
    """Classifies a model. One that was not measured both ways counts as light: nothing is known against it."""
    if not snapshot.resident_s or snapshot.swapped_s is None:
        return Decision(False, None, "light: not measured both swapped and resident yet"), state
    ratio = snapshot.swapped_s / snapshot.resident_s
    word = "heavy" if ratio >= settings.threshold else "light"
    reason = (
        f"{word}: {snapshot.swapped_s * 1000:.3g} ms swapped over {snapshot.resident_s * 1000:.3g} ms resident "
        f"is {ratio:.2f}, {settings.threshold:g} is heavy"
    )
    return Decision(word == "heavy", ratio, reason), state

"""What users pay for: the time that devices worked for them, and a part of it while their functions sleep (Torpor, 8).

The paper charges a tenth of the price of a device while a function is kept in host memory. Here host memory counts from
the moment the weights are there until they leave, also while the function executes: so a bill is the sum of its hours,
its functions and its tenants, however it is put together. Of several nodes each counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """host_share: what a millisecond in host memory costs, of what one of a device does."""

    host_share: float = 0.1


def billed_ms(device_ms: float, host_ms: float, settings: Settings) -> float:
    """What is paid for, in milliseconds of a device."""
    return device_ms + settings.host_share * host_ms

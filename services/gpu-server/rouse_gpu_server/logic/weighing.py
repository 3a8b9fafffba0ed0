"""Which models are heavy on which device: what their requests took, told to rouse_policy.heaviness."""

from __future__ import annotations

import logging

from rouse_gpu_server.state.records import Lease
from rouse_policy import heaviness

LOG = logging.getLogger(__name__)


class Weighing:
    """Learns from leases that end.

    A request whose weights were there took the time that the device worked for it. One whose weights came first took
    the time that they were on their way besides, where nothing else was on the same links: the first under the first
    lease after a swap from host memory.
    """

    def __init__(self, settings: heaviness.Settings) -> None:
        self._settings = settings

    def ended(self, lease: Lease, device_ms: float, requests: int) -> None:
        """Counts a lease under which a device worked so long for so many requests."""
        if lease.resident is None or device_ms <= 0:
            return
        model, device = lease.model, lease.device_name
        seconds = device_ms / 1000 / requests
        measured = model.measured.get(device, heaviness.Measured())
        if not lease.first or requests > 1:
            measured = heaviness.learn(measured, seconds, False, self._settings)
        if lease.first and lease.moved_s is not None:
            measured = heaviness.learn(measured, lease.moved_s + seconds, True, self._settings)
        model.measured[device] = measured
        before = model.weights_on.get(device)
        decision, _ = heaviness.decide(measured, None, self._settings, 0.0)
        model.weights_on[device] = decision
        if decision.heavy != (before is not None and before.heavy):
            LOG.info("weighed function=%s device=%s reason=%s", model.function, device, decision.reason)

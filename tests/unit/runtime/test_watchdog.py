"""The watchdog, beside work that ends in time; what it does to work that does not: tests/integration."""

from __future__ import annotations

import threading
from pathlib import Path

from rouse_runtime.watchdog import Watchdog

REQUESTS = 200


def switches(thread: threading.Thread) -> int:
    """How often a thread went to sleep."""
    lines = Path(f"/proc/self/task/{thread.native_id}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])


def test_requests_that_end_in_time_do_not_wake_it() -> None:
    before = set(threading.enumerate())
    watchdog = Watchdog()
    (thread,) = set(threading.enumerate()) - before
    pause = threading.Event()
    watchdog.begin("the first", 60.0)
    watchdog.end()
    pause.wait(0.1)
    slept = switches(thread)
    for number in range(REQUESTS):
        watchdog.begin(f"request {number}", 60.0)
        watchdog.end()
        pause.wait(0.001)
    assert switches(thread) - slept < REQUESTS / 10

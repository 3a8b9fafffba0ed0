"""Ends the process when user code hangs: Python code cannot be interrupted, a process can."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import traceback

LOG = logging.getLogger(__name__)

EXIT_HUNG = 70
# Code that never lets go of the interpreter also keeps our thread from running; the kernel's timer ends it then.
KERNEL_MARGIN_S = 5.0


class Watchdog:
    """Watches one piece of work at a time, from a thread of its own.

    When the work takes longer than allowed, the process ends with code 70 after a log line that says where the
    work was; where the interpreter itself is stuck, SIGALRM ends it five seconds later.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends_at: float | None = None
        # When the thread looks next by itself. It stays so when the work has ended before, or the thread would be woken
        # by every request.
        self._looks_at = math.inf
        self._what = ""
        self._worker = 0
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self, what: str, seconds: float) -> None:
        """Allows `seconds` for what follows; to be called in the thread that does the work."""
        with self._changed:
            self._what, self._worker = what, threading.get_ident()
            self._ends_at = time.monotonic() + seconds
            if self._ends_at < self._looks_at:
                self._looks_at = self._ends_at
                self._changed.notify()
        signal.setitimer(signal.ITIMER_REAL, seconds + KERNEL_MARGIN_S)

    def end(self) -> None:
        """The work is done."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        with self._changed:
            self._ends_at = None

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                if self._ends_at is not None and self._ends_at <= now:
                    self._kill()
                if self._looks_at <= now:
                    self._looks_at = math.inf if self._ends_at is None else self._ends_at
                self._changed.wait(None if self._looks_at == math.inf else self._looks_at - now)

    def _kill(self) -> None:
        frame = sys._current_frames().get(self._worker)
        place = traceback.format_stack(frame, limit=4) if frame else []
        stack = " < ".join(" ".join(line.split()) for line in reversed(place))
        LOG.error("hung: %s, ending the process with code %d; it was at %s", self._what, EXIT_HUNG, stack)
        logging.shutdown()
        os._exit(EXIT_HUNG)

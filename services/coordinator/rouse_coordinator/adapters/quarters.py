"""Where an instance lives: a folder of its own, a user of its own, and what it is let into."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

LOG = logging.getLogger(__name__)
TMP, ROOT = "tmp", "root"


class Quarters:
    """One instance's folder, closed to others, and the pipe that it waits at for its grants.

    Args:
        path: the folder, made here.
        user: who owns it; 0: we do.
        isolated: whether the instance waits for grants at all.
    """

    def __init__(self, path: Path, user: int, *, isolated: bool) -> None:
        self.path, self.user = path, user
        path.mkdir(mode=0o700)
        if not isolated:
            self.reading, self._writing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1
            return
        folders = [path, path / TMP, path / ROOT]
        for folder in folders[1:]:
            folder.mkdir(mode=0o700)
        if user:
            try:
                for folder in folders:
                    os.chown(folder, user, user)
            except OSError as error:
                # As in a container that knows few users. The instance says that it has none of its own.
                LOG.warning("no user of its own folder=%s user=%d reason=%s", path.name, user, error.strerror)
                self.user = 0
        self.reading, self._writing = os.pipe2(os.O_CLOEXEC)

    def started(self) -> None:
        """The process has its end of the pipe."""
        if self.reading >= 0:
            os.close(self.reading)
            self.reading = -1

    def grant(self, paths: Sequence[str]) -> None:
        """Lets the instance go on, with access to these paths; a second time nothing."""
        if self._writing < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # it ended; whoever waits for it sees that
            os.write(self._writing, json.dumps(list(paths)).encode())
        self._close()

    def remove(self) -> None:
        """The process is gone. Harmless twice."""
        self.started()
        self._close()
        shutil.rmtree(self.path, ignore_errors=True)

    def _close(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


class Users:
    """Hands out users from a range, each to one instance at a time.

    Args:
        first: the first of them; 0, or where we are not root, nobody gets one.
    """

    def __init__(self, first: int, count: int) -> None:
        self._free = list(range(first + count - 1, first - 1, -1)) if first and os.geteuid() == 0 else []

    def take(self) -> int:
        """0 for none."""
        return self._free.pop() if self._free else 0

    def give_back(self, user: int) -> None:
        if user:
            self._free.append(user)

"""Runs a program as another user: `python -m rouse_testkit.as_user USER PROGRAM ARGUMENT…`. For root only.

Where Python itself lies in a folder that is closed to others, as below root's home, a mount namespace shows it
nevertheless, and nothing else of that folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from rouse_runtime.isolation import kernel


def closed_above(path: Path) -> Path | None:
    """The topmost folder above a path that others cannot pass through."""
    return next((folder for folder in [*path.parents][::-1] if not folder.stat().st_mode & 0o001), None)


def show(prefix: Path, closed: Path) -> None:
    """Leaves of a closed folder only what is at `prefix`, and opens it."""
    with tempfile.TemporaryDirectory() as aside:
        kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount(str(prefix), aside, "", kernel.MS_BIND | kernel.MS_REC)
        kernel.mount("tmpfs", str(closed), "tmpfs", 0, "mode=0755")
        prefix.mkdir(parents=True)
        kernel.mount(aside, str(prefix), "", kernel.MS_BIND | kernel.MS_REC)
        kernel.check(kernel.libc().umount2(aside.encode(), kernel.MNT_DETACH), "umount")


def main() -> None:
    user, program = int(sys.argv[1]), sys.argv[2:]
    prefix = Path(sys.base_prefix)
    closed = closed_above(prefix)
    if closed is not None:
        kernel.unshare(kernel.CLONE_NEWNS)
        show(prefix, closed)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()

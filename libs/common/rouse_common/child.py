"""The end of a child process, without signals and threads."""

from __future__ import annotations

import asyncio
import os
import subprocess


def exit_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """The exit code of a child to come, negative for a signal; the child is reaped the moment it ends."""
    loop = asyncio.get_running_loop()
    exit_code: asyncio.Future[int] = loop.create_future()
    descriptor = os.pidfd_open(process.pid)

    def reap() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        exit_code.set_result(process.wait())

    loop.add_reader(descriptor, reap)
    return exit_code

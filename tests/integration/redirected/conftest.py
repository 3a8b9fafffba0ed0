"""Fixtures of functions on the `rouse` device, with a real executor."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch

import rouse_native
from rouse_common.link import Links
from rouse_native.executor import ExecutorProcess, ExecutorSettings
from rouse_testkit.redirected import Executor, Host


@pytest.fixture
def folder() -> Iterator[Path]:
    if not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None:
        pytest.skip("the native core is not built on this machine")
    with tempfile.TemporaryDirectory(prefix="rouse-") as name:
        yield Path(name)


@pytest.fixture
def host(folder: Path) -> Iterator[Host]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = Host(folder)
    yield made
    made.weights.close()
    torch.set_num_threads(threads)


@pytest.fixture
async def executor(folder: Path, host: Host) -> AsyncIterator[Executor]:
    links = Links(1 << 20)
    ended: list[asyncio.Event] = []
    process = ExecutorProcess(
        ExecutorSettings("host:0", folder, {"threads": 1}), links, on_lost=lambda reason: ended[0].set()
    )
    async with process.running():
        executor = Executor(process, folder, host.image)
        ended.append(executor.ended)
        yield executor
    await links.close()

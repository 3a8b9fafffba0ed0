"""Weights that are brought to the node before an instance needs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rouse_common.errors import ResourceExhausted, RouseError
from rouse_contracts.functions import FunctionVersion

LOG = logging.getLogger(__name__)
MAX_AT_ONCE = 8


class Ahead:
    """Has gpu-server stage versions that no instance waits for.

    Args:
        stage: brings a version to host memory within seconds. Raises RouseError.
        timeout_s: how long one may take.
    """

    def __init__(
        self, stage: Callable[[FunctionVersion, float], Awaitable[object]], timeout_s: float, group: asyncio.TaskGroup
    ) -> None:
        self._stage, self._timeout_s, self._group = stage, timeout_s, group
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def stage(self, version: FunctionVersion) -> None:
        """Begins, unless it is under way. Raises ResourceExhausted TOO_MANY_STAGINGS."""
        if version.version_id in self._under_way:
            return
        if len(self._under_way) >= MAX_AT_ONCE:
            raise ResourceExhausted(
                "TOO_MANY_STAGINGS", f"{MAX_AT_ONCE} versions are being staged ahead on this node", retry_after_s=5.0
            )
        task = self._group.create_task(self._run(version), name=f"ahead {version.version_id}")
        self._under_way[version.version_id] = task
        task.add_done_callback(lambda _: self._under_way.pop(version.version_id, None))

    def stop(self) -> None:
        """Gives up what is under way; gpu-server ends it in its own time."""
        for task in tuple(self._under_way.values()):
            task.cancel()

    async def _run(self, version: FunctionVersion) -> None:
        try:
            await self._stage(version, self._timeout_s)
        except RouseError as error:
            LOG.warning(
                "not staged ahead function=%s version=%s error=%s", version.spec.name, version.version_id, error
            )

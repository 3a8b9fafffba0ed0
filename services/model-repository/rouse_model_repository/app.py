"""model-repository put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from rouse_bus import Bus, Following
from rouse_common.clock import SystemClock
from rouse_common.locks import KeyedLocks
from rouse_common.rpc import RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import repository
from rouse_model_repository import service
from rouse_model_repository.adapters.bucket import Bucket
from rouse_model_repository.adapters.spool import Spool
from rouse_model_repository.config import ModelRepositoryConfig
from rouse_model_repository.inspector import Inspector
from rouse_model_repository.library import Library
from rouse_model_repository.service import RepositoryService
from rouse_model_repository.state import Index
from rouse_model_repository.states import States
from rouse_model_repository.uploads import Uploads

LOG = logging.getLogger(__name__)
MAX_CALLS = 512
COLLECT_EVERY_S = 60.0


class ModelRepositoryApp:
    """Owns what lives as long as the process: the connection to NATS, the index, the server."""

    def __init__(self, config: ModelRepositoryConfig) -> None:
        self._config = config

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set, then drains. See rouse_common.lifecycle.App."""
        config, clock = self._config, SystemClock()
        spool = Spool(Path(config.spool_dir))
        await asyncio.to_thread(spool.prepare)
        bus = Bus.open(config.nats, "model-repository")
        try:
            index, locks, bucket = Index(), KeyedLocks(), Bucket(bus, config.replicas)
            library = Library(bucket, index, locks, Inspector(bucket), clock, config.uncommitted_s, config.limits())
            uploads = Uploads(bucket, spool, index, locks, clock, config.max_blob_mib << 20)
            server = RpcServer(
                config.listen, max_message_bytes=config.max_message_mib << 20, max_concurrent=MAX_CALLS, tls=config.tls
            )  # fmt: skip
            following = Following(bus, "the bucket", library.load, server.set_serving)
            states = States(index, library, clock)
            handlers = RepositoryService(library, states, uploads, bucket, lambda: following.holds)
            server.add(service.register, handlers, repository.DESCRIPTOR)
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(following.run()),
                    tasks.create_task(periodically("deleting unnamed blobs", COLLECT_EVERY_S, library.collect)),
                ]
                try:
                    await ready(server.address)
                    await stopping.wait()
                finally:
                    # Before the drain, so that nothing sets it to serving again.
                    for task in background:
                        task.cancel()
                    await server.stop(config.drain_s)
        finally:
            await bus.close()

"""One connection to NATS, from dialling until it is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from nats import errors
from nats.aio.client import Client

from rouse_bus.failures import bus_down
from rouse_bus.servers import Servers

LOG = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2
# A dead peer is noticed after about three of these.
PING_INTERVAL_S = 5
MAX_OUTBOUND_BYTES = 8 << 20


class _Guarded(Client):
    """The client library's, which would go on in plain text, password and all, with a server that asks for no TLS."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if not info.get("tls_required") and not info.get("tls_available"):
                raise errors.Error("the server offers no TLS, and the URL asks for it")
            # Of a server that leaves it to the client, too.
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


class Link:
    """A live connection. When it breaks, `lost` is done and the link is of no more use.

    The client's own reconnecting is off: it keeps what was published while away and says nothing to
    those who wait for answers. A link fails at once instead, and Bus dials a new one.
    """

    def __init__(self, client: Client, lost: asyncio.Future[None]) -> None:
        self.client = client
        self.lost = lost

    @classmethod
    async def dial(cls, servers: Servers, name: str) -> Link:
        """Connects once. Raises Unavailable BUS_DOWN."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        causes: list[Exception] = []
        client = _Guarded() if servers.tls else Client()

        def broken(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                LOG.debug("nats client stopped reading error=%r", task.exception())
            if not lost.done():
                lost.set_result(None)

        async def failed(error: Exception) -> None:
            causes[:] = [error]
            LOG.debug("nats client error=%r", error)

        try:
            await client.connect(
                list(servers.urls), name=name, tls=servers.context(),
                allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S, ping_interval=PING_INTERVAL_S, error_cb=failed,
                pending_size=MAX_OUTBOUND_BYTES,
            )  # fmt: skip
        except Exception as error:  # the client hands on whatever its transport raised
            await cls(client, lost).close()
            cause = causes[0] if causes and isinstance(error, errors.NoServersError) else error
            raise bus_down(f"connecting to {servers.shown}", cause) from error
        except BaseException:
            await cls(client, lost).close()
            raise
        # The client's own notice of a loss does not come where hanging up fails; the end of its reading does.
        assert client._reading_task is not None
        client._reading_task.add_done_callback(broken)
        return cls(client, lost)

    async def close(self) -> None:
        """Sends what waits to be sent and hangs up; on a broken connection, only the latter."""
        try:
            await self.client.close()
        except (OSError, errors.Error) as error:
            LOG.debug("nats client closed badly error=%r", error)

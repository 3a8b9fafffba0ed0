"""TLS before a server that was built without it: the client's side is the real thing, certificates and all.

The wheels of PostgreSQL and Redis that tests run have no TLS. What is tested is whom our clients believe, and
that they send nothing before they do; for that it does not matter which process ends the TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rouse_common.tls import TlsFiles

# What libpq sends first where its sslmode asks for TLS (PostgreSQL's protocol, "SSLRequest").
SSL_REQUEST = struct.pack("!II", 8, 80877103)
CHUNK_BYTES = 1 << 16


@asynccontextmanager
async def tls_front(port: int, files: TlsFiles, *, postgres: bool = False) -> AsyncIterator[int]:
    """Serves TLS on a port of its own, which it yields, on all loopback addresses, and passes on to `port`, plain.

    Args:
        postgres: begins as PostgreSQL does, and hangs up on clients that do not ask for TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if postgres:
                if await reader.readexactly(len(SSL_REQUEST)) != SSL_REQUEST:
                    return
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(context)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.TaskGroup() as pipes:
                pipes.create_task(_pipe(reader, inner_writer))
                pipes.create_task(_pipe(inner_reader, writer))
        except (OSError, asyncio.IncompleteReadError, ExceptionGroup):
            # A client that believes nothing hangs up in the middle of the handshake.
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0, ssl=None if postgres else context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()

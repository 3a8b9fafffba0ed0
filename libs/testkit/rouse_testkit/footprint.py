"""What a mesh keeps, byte for byte and row for row, so that a test can say that nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import nats
import psycopg2
from nats.js.errors import NotFoundError
from psycopg2 import sql

from rouse_embedded import MeshInfo

BUCKET = "artefacts"
HOST_TIER = "host"
# Ledgers outlive what they are about; placements mirror what nodes said in their last heartbeat.
NOT_COUNTED = ("alembic_version", "events", "usage_hours", "usage_records", "usage_totals", "placements")
CONNECT_TIMEOUT_S = 5


@dataclass(frozen=True)
class Footprint:
    """Args:
    device_bytes: files of device memory, all nodes.
    host_bytes: files of host copies, all nodes.
    disk_bytes: the nodes' disk tier, and uploads that are not finished.
    object_bytes, object_chunks: objects in the object store, and the messages that hold them, named or not.
    rows: number of rows by table, without ledgers and placements.
    """

    device_bytes: int
    host_bytes: int
    disk_bytes: int
    object_bytes: int
    object_chunks: int
    rows: dict[str, int]


def measure(info: MeshInfo) -> Footprint:
    """The footprint of a running mesh now."""
    nodes = [path for path in info.folders.memory.iterdir() if path.is_dir()]
    tiers = [tier for node in nodes for tier in node.iterdir() if tier.is_dir()]
    caches = [path / "cache" for path in (info.folders.data / "nodes").iterdir()]
    object_bytes, object_chunks = asyncio.run(_objects(info.stores.nats.url))
    return Footprint(
        device_bytes=_bytes(tier for tier in tiers if tier.name != HOST_TIER),
        host_bytes=_bytes(tier for tier in tiers if tier.name == HOST_TIER),
        disk_bytes=_bytes([*caches, info.folders.data / "spool"]),
        object_bytes=object_bytes,
        object_chunks=object_chunks,
        rows=_rows(info.stores.postgres.url),
    )


def _bytes(folders: Iterable[Path]) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


async def _objects(url: str) -> tuple[int, int]:
    """Bytes of the objects that the bucket names, and how many chunks its stream holds."""
    client = await nats.connect(url, connect_timeout=CONNECT_TIMEOUT_S)
    try:
        stream = client.jetstream()
        try:
            chunks = await stream.stream_info(f"OBJ_{BUCKET}", subjects_filter=f"$O.{BUCKET}.C.>")
            store = await stream.object_store(BUCKET)
        except NotFoundError:  # nothing was ever stored
            return 0, 0
        try:
            named = await store.list(ignore_deletes=True)
        except NotFoundError:  # which is how the client says that there is none
            named = []
        return sum(entry.size or 0 for entry in named), sum((chunks.state.subjects or {}).values())
    finally:
        await client.close()


def _rows(url: str) -> dict[str, int]:
    connection = psycopg2.connect(url.replace("+psycopg2", ""), connect_timeout=CONNECT_TIMEOUT_S)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
            tables = [name for (name,) in cursor.fetchall() if name not in NOT_COUNTED]
            rows = {}
            for table in tables:
                cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table)))
                rows[table] = cursor.fetchall()[0][0]
            return rows
    finally:
        connection.close()

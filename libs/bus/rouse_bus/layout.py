"""How NATS object buckets lie in a stream (NATS ADR-20), so that other clients read what we write."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rouse_bus.streams import timestamp
from rouse_common.errors import DataLoss

CHUNK_BYTES = 256 << 10
DIGEST_PREFIX = "SHA-256="
ROLLUP = {"Nats-Rollup": "sub"}


@dataclass(frozen=True)
class ObjectInfo:
    """What a bucket says of an object.

    Args:
        digest: sha256 of the content, lower-case hex; empty where the writer gave none.
        modified: seconds since 1970.
        metadata: what its writer said of it.
        chunk_bytes: size of every chunk but the last; 0 where unknown.
        sequence: of the message that this was read from.
    """

    name: str
    size_bytes: int
    digest: str
    modified: float
    chunks: int
    chunk_bytes: int
    key: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    sequence: int = 0

    def encode(self, bucket: str) -> bytes:
        digest = DIGEST_PREFIX + base64.urlsafe_b64encode(bytes.fromhex(self.digest)).decode()
        return json.dumps(
            {
                "name": self.name,
                "bucket": bucket,
                "nuid": self.key,
                "size": self.size_bytes,
                "chunks": self.chunks,
                "digest": digest,
                "mtime": datetime.fromtimestamp(self.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "options": {"max_chunk_size": self.chunk_bytes},
                "metadata": dict(self.metadata),
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes, sequence: int) -> ObjectInfo:
        """Raises DataLoss OBJECT_CORRUPT where it is not a description of an object."""
        try:
            record: dict[str, Any] = json.loads(data)
            digest = record.get("digest", "").partition("=")[2]
            return cls(
                record["name"],
                record.get("size", 0),
                base64.urlsafe_b64decode(digest).hex(),
                timestamp(record["mtime"]) if record.get("mtime") else 0.0,
                record.get("chunks", 0),
                (record.get("options") or {}).get("max_chunk_size", 0),
                record["nuid"],
                record.get("metadata") or {},
                record.get("deleted", False),
                sequence,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLoss("OBJECT_CORRUPT", f"message {sequence} does not describe an object: {error}") from None


def new_key() -> str:
    """A name for the chunks of one writing of an object."""
    return secrets.token_hex(11)


def stream(bucket: str) -> str:
    return f"OBJ_{bucket}"


def chunks(bucket: str, key: str = ">") -> str:
    return f"$O.{bucket}.C.{key}"


def description(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def descriptions(bucket: str) -> str:
    return f"$O.{bucket}.M.>"

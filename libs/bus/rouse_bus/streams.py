"""JetStream streams: make and delete them, publish with acknowledgement, read."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from nats.aio.msg import Msg

from rouse_bus.bus import API, Bus
from rouse_bus.failures import api_error
from rouse_bus.inbox import DESCRIPTION, STATUS, Inbox
from rouse_common import telemetry
from rouse_common.errors import AlreadyExists, Internal, NotFound

NANOS = 1_000_000_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
SCAN_BATCH = 256
END_OF_BATCH = "204"


class Retention(Enum):
    """When a stream lets go of a message."""

    LIMITS = "limits"  # past the limits of age and bytes
    WORK_QUEUE = "workqueue"  # when its one consumer has acknowledged it


@dataclass(frozen=True)
class StreamSettings:
    """A stream to make.

    Args:
        max_bytes: further messages are refused past it; 0 is no limit.
        max_age_s: messages are dropped after so long; 0 is never.
        max_per_subject: older messages of a subject are dropped past it; 0 is no limit.
        in_memory: kept in the server's memory, lost with it.
        metadata: kept with the stream and given back by `state`.
    """

    name: str
    subjects: tuple[str, ...]
    max_bytes: int = 0
    max_age_s: float = 0
    max_per_subject: int = 0
    retention: Retention = Retention.LIMITS
    in_memory: bool = False
    replicas: int = 1
    rollup: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "max_bytes": self.max_bytes or -1,
            "max_age": int(self.max_age_s * NANOS),
            "max_msgs_per_subject": self.max_per_subject or -1,
            "max_msgs": -1,
            "max_msg_size": -1,
            "max_consumers": -1,
            "retention": self.retention.value,
            "storage": "memory" if self.in_memory else "file",
            "discard": "new" if self.max_bytes else "old",
            "num_replicas": self.replicas,
            "allow_rollup_hdrs": self.rollup,
            "allow_direct": True,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True)
class StreamState:
    """A stream as it is now. `created` in seconds since 1970."""

    name: str
    subjects: tuple[str, ...]
    messages: int
    bytes: int
    max_bytes: int
    created: float
    metadata: Mapping[str, str]

    @classmethod
    def parse(cls, response: dict[str, Any]) -> StreamState:
        config, state = response["config"], response["state"]
        return cls(
            config["name"],
            tuple(config.get("subjects", ())),
            state["messages"],
            state["bytes"],
            max(0, config.get("max_bytes", 0)),
            timestamp(response["created"]),
            config.get("metadata") or {},
        )


@dataclass(frozen=True)
class StoredMessage:
    """A message of a stream; `following` says how many matching ones come after it."""

    subject: str
    data: bytes
    sequence: int
    following: int


def timestamp(text: str) -> float:
    """RFC 3339 with nanoseconds as seconds since 1970."""
    head, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{head}.{rest[:6] or '0'}+00:00").timestamp()


def check_name(name: str) -> str:
    """A name that a stream or a bucket may have. Raises ValueError."""
    if not NAME.fullmatch(name):
        raise ValueError(f"stream name '{name}': want letters, digits, '-' and '_', 200 at most")
    return name


class Streams:
    """The streams of a mesh. Every method raises Unavailable BUS_DOWN while NATS is away."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def create(self, settings: StreamSettings) -> StreamState:
        """Makes a stream; one with the very same settings is accepted.

        Raises AlreadyExists STREAM_EXISTS, ResourceExhausted STORAGE_FULL.
        """
        return StreamState.parse(await self._bus.api(f"STREAM.CREATE.{check_name(settings.name)}", settings.request()))

    async def ensure(self, settings: StreamSettings) -> None:
        """Makes a stream unless one of that name is there, whatever its settings."""
        try:
            await self.create(settings)
        except AlreadyExists:
            await self.state(settings.name)  # the name must be it, not a subject of another stream

    async def delete(self, name: str) -> bool:
        """Deletes a stream with its messages; False where there is none."""
        try:
            await self._bus.api(f"STREAM.DELETE.{check_name(name)}")
        except NotFound:
            return False
        return True

    async def state(self, name: str) -> StreamState:
        """Raises NotFound STREAM_NOT_FOUND."""
        return StreamState.parse(await self._bus.api(f"STREAM.INFO.{check_name(name)}"))

    async def list(self, subject: str = ">") -> list[StreamState]:
        """Streams whose subjects overlap with `subject`; all of them without one."""
        found: list[StreamState] = []
        while True:
            request: dict[str, Any] = {"offset": len(found)} | ({} if subject == ">" else {"subject": subject})
            response = await self._bus.api("STREAM.LIST", request)
            page = response.get("streams") or []
            found += [StreamState.parse(stream) for stream in page]
            if not page or len(found) >= response["total"]:
                return found

    async def subjects(self, name: str, subject: str) -> dict[str, int]:
        """Subjects of a stream that match, with how many messages each holds."""
        found: dict[str, int] = {}
        while True:
            request = {"subjects_filter": subject, "offset": len(found)}
            response = await self._bus.api(f"STREAM.INFO.{check_name(name)}", request)
            page = response["state"].get("subjects") or {}
            found |= page
            if not page or len(found) >= response.get("total", 0):
                return found

    async def publish(self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None) -> int:
        """Stores a message and returns its sequence. When BUS_DOWN comes after it was sent, it may be stored.

        Raises NotFound STREAM_NOT_FOUND, ResourceExhausted STREAM_FULL | STORAGE_FULL,
        InvalidArgument MESSAGE_TOO_LARGE.
        """
        what = f"storing at {subject}"
        carried = dict(telemetry.inject()) | dict(headers or {})
        try:
            answer = await self._bus.request(subject, data, what=what, headers=carried or None)
        except NotFound:
            raise NotFound("STREAM_NOT_FOUND", f"{what}: no stream takes this subject") from None
        return acknowledged(what, answer)

    async def purge(self, name: str, subject: str) -> int:
        """Deletes the messages whose subject matches; returns how many."""
        response = await self._bus.api(f"STREAM.PURGE.{check_name(name)}", {"filter": subject})
        return int(response["purged"])

    async def scan(
        self, name: str, subject: str, *, start: int = 1, batch: int = SCAN_BATCH
    ) -> AsyncGenerator[StoredMessage, None]:
        """The messages whose subject matches, from sequence `start` on, as they are now; leaves them there.

        Asks for `batch` at a time, so that no more than these wait in memory.
        """
        what = f"reading stream {check_name(name)}"
        async with Inbox(self._bus, what) as inbox:
            while True:
                request = {"seq": start, "next_by_subj": subject, "batch": batch}
                await inbox.publish(f"{API}DIRECT.GET.{name}", json.dumps(request).encode(), token=start)
                left = 0
                while True:
                    message = await inbox.next()
                    status = (message.headers or {}).get(STATUS)
                    if status is not None:
                        self._end_of_batch(what, status, message)
                        break
                    stored = _stored(message)
                    yield stored
                    start, left = stored.sequence + 1, stored.following
                if left == 0:
                    return

    @staticmethod
    def _end_of_batch(what: str, status: str, message: Msg) -> None:
        if status == "503":
            raise NotFound("STREAM_NOT_FOUND", f"{what}: there is no such stream")
        if status not in (END_OF_BATCH, "404"):
            raise Internal("BUS_ERROR", f"{what}: {status} {(message.headers or {}).get(DESCRIPTION, '')}")

    async def last(self, name: str, subject: str) -> StoredMessage:
        """The newest message of a subject. Raises NotFound MESSAGE_NOT_FOUND | STREAM_NOT_FOUND."""
        response = await self._bus.api(f"STREAM.MSG.GET.{check_name(name)}", {"last_by_subj": subject})
        message = response["message"]
        return StoredMessage(message["subject"], base64.b64decode(message.get("data", "")), message["seq"], 0)


def _stored(message: Msg) -> StoredMessage:
    headers = message.headers or {}
    return StoredMessage(
        headers["Nats-Subject"], message.data, int(headers["Nats-Sequence"]), int(headers.get("Nats-Num-Pending", 0))
    )


def acknowledged(what: str, answer: bytes) -> int:
    """The sequence in a stream's acknowledgement. Raises the error that it carries."""
    response = json.loads(answer)
    if "error" in response:
        raise api_error(what, response["error"])
    return int(response["seq"])

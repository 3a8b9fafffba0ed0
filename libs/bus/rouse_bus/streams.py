"""JetStream streams: make and delete them, publish with acknowledgement, read, and take messages out."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from nats.aio.msg import Msg

from rouse_bus.bus import API, Bus
from rouse_bus.failures import api_error, bus_down
from rouse_bus.inbox import DESCRIPTION, STATUS, Inbox
from rouse_common import telemetry
from rouse_common.errors import AlreadyExists, Internal, NotFound

NANOS = 1_000_000_000
NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
PAGE = 256
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

    async def list(self, subject: str) -> list[StreamState]:
        """Streams whose subjects overlap with `subject`."""
        found: list[StreamState] = []
        while True:
            response = await self._bus.api("STREAM.LIST", {"offset": len(found), "subject": subject})
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


@dataclass(frozen=True)
class Taken:
    """A message handed out by a Consumer; it stays in the stream until it is acknowledged."""

    data: bytes
    sequence: int
    headers: Mapping[str, str]
    reply: str


class Consumer:
    """Takes the messages of one subject out of a work-queue stream, oldest first.

    `open` begins with the first message that was not acknowledged, whoever took it before, and shuts
    out an earlier consumer of the same name. For one user at a time.
    """

    # Nothing is handed out again to this consumer: its successor starts over instead.
    ACK_WAIT_S = 24 * 3600
    MAX_UNACKNOWLEDGED = 8192
    ANSWER_MARGIN_S = 5.0

    def __init__(self, bus: Bus, stream: str, subject: str, name: str) -> None:
        self._bus, self._stream, self._subject, self._name = bus, check_name(stream), subject, check_name(name)
        self._inbox = Inbox(bus, f"taking from {subject}")
        self._pulls = 0

    async def open(self) -> Consumer:
        """Raises NotFound STREAM_NOT_FOUND."""
        try:
            await self._bus.api(f"CONSUMER.DELETE.{self._stream}.{self._name}")
        except NotFound as error:
            if error.reason == "STREAM_NOT_FOUND":
                raise
        config = {
            "name": self._name,
            "filter_subject": self._subject,
            "ack_policy": "explicit",
            "ack_wait": self.ACK_WAIT_S * NANOS,
            "max_ack_pending": self.MAX_UNACKNOWLEDGED,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "inactive_threshold": self.ACK_WAIT_S * NANOS,
        }
        await self._bus.api(
            f"CONSUMER.CREATE.{self._stream}.{self._name}.{self._subject}",
            {"stream_name": self._stream, "config": config},
        )
        await self._inbox.open()
        return self

    async def take(self, limit: int, wait_s: float) -> list[Taken]:
        """Up to `limit` messages that are there; where there are none, waits up to `wait_s` for the first.

        A cancelled wait loses nothing: what still comes for it is handed out by the next call.
        """
        taken = await self._pull(limit, 0)
        if not taken and wait_s > 0:
            taken = await self._pull(1, wait_s)
            if taken and limit > 1:
                taken += await self._pull(limit - 1, 0)
        return taken

    async def _pull(self, limit: int, wait_s: float) -> list[Taken]:
        taken: list[Taken] = []
        while len(taken) < limit and (message := self._inbox.waiting()) is not None:
            self._collect(message, taken)
        if len(taken) == limit:
            return taken
        self._pulls += 1
        token = f"{self._pulls}"
        asked: dict[str, Any] = {"batch": limit - len(taken)}
        asked |= {"expires": int(wait_s * NANOS)} if wait_s else {"no_wait": True}
        subject = f"{API}CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._inbox.publish(subject, json.dumps(asked).encode(), token)
        while len(taken) < limit:
            message = await self._inbox.next(wait_s + self.ANSWER_MARGIN_S)
            ended = self._collect(message, taken)
            if ended == self._inbox.subject(token):
                break
        return taken

    def _collect(self, message: Msg, taken: list[Taken]) -> str | None:
        """Adds a message to `taken`; returns the request that a status line ends instead."""
        headers = message.headers or {}
        status = headers.get(STATUS)
        if status is None:
            taken.append(Taken(message.data, sequence_of(message.reply), headers, message.reply))
            return None
        if status == "503":
            raise bus_down(f"taking from {self._subject}", "its consumer does not answer")
        if status == "409" and "Consumer Deleted" in headers.get(DESCRIPTION, ""):
            raise NotFound("CONSUMER_NOT_FOUND", f"taking from {self._subject}: its consumer is gone")
        return message.subject if status.startswith("4") else None

    async def acknowledge(self, messages: Sequence[Taken]) -> None:
        """Takes messages out of the stream for good; returns when the stream has confirmed it."""
        if not messages:
            return
        *others, last = messages
        for message in others:
            await self._inbox.publish(message.reply, b"+ACK")
        await self._bus.request(last.reply, b"+ACK", what=f"taking from {self._subject}")

    async def close(self) -> None:
        await self._inbox.close()


def sequence_of(reply: str) -> int:
    """The stream's sequence in the reply subject of a delivered message."""
    tokens = reply.split(".")
    # $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.…, or with domain and account before the stream.
    return int(tokens[5] if len(tokens) == 9 else tokens[7])

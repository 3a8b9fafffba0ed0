"""Pull consumers: messages taken out of a work-queue stream."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from rouse_bus.bus import API, Bus
from rouse_bus.failures import bus_down
from rouse_bus.inbox import DESCRIPTION, STATUS, Inbox
from rouse_bus.streams import NANOS, check_name
from rouse_common.errors import NotFound


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
        # Delivered, and not handed out yet.
        self._here: deque[Taken] = deque()

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

    @property
    def alive(self) -> bool:
        """False once its connection is gone: open another one."""
        return self._inbox.alive

    async def take(self, limit: int, wait_s: float, *, max_bytes: int = 0) -> list[Taken]:
        """Up to `limit` messages that are there; where there are none, waits up to `wait_s` for the first.

        A call that is cancelled or fails loses nothing: what came for it is handed out by the next one.

        Args:
            max_bytes: asks for no more at once, headers included; 0 is no limit. A larger message never comes.
        """
        await self._pull(limit, 0, max_bytes)
        if not self._here and wait_s > 0:
            await self._pull(1, wait_s, max_bytes)
            if self._here and limit > 1:
                await self._pull(limit, 0, max_bytes)
        return [self._here.popleft() for _ in range(min(limit, len(self._here)))]

    async def _pull(self, limit: int, wait_s: float, max_bytes: int) -> None:
        """Gets messages until `limit` are here, or there are no more of them."""
        while len(self._here) < limit and (message := self._inbox.waiting()) is not None:
            self._collect(message)
        if len(self._here) >= limit:
            return
        self._pulls += 1
        token = f"{self._pulls}"
        asked: dict[str, Any] = {"batch": limit - len(self._here)}
        asked |= {"expires": int(wait_s * NANOS)} if wait_s else {"no_wait": True}
        asked |= {"max_bytes": max_bytes} if max_bytes else {}
        subject = f"{API}CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._inbox.publish(subject, json.dumps(asked).encode(), token)
        while len(self._here) < limit:
            if self._collect(await self._inbox.next(wait_s + self.ANSWER_MARGIN_S)) == self._inbox.subject(token):
                return

    def _collect(self, message: Msg) -> str | None:
        """Keeps a message; returns the request that a status line ends instead."""
        headers = message.headers or {}
        status = headers.get(STATUS)
        if status is None:
            self._here.append(Taken(message.data, sequence_of(message.reply), headers, message.reply))
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

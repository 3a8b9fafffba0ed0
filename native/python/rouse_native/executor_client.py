"""Calls to an executor over its link, typed (proto/rouse/device/v1/core.proto)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from rouse_common.errors import Internal
from rouse_common.link import Buffer, Links
from rouse_contracts import core, device
from rouse_contracts.links import EXECUTE

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of one session; 0 is the executor's default.

    Attributes:
        ring_bytes: of each direction; a power of two.
        scratch_bytes: memory of its tensors beside the weights.
        connect_s: how long it waits for its process.
    """

    ring_bytes: int = 0
    scratch_bytes: int = 0
    connect_s: float = 0.0


class ExecutorClient:
    """One executor's CoreService and ExecutorService.Execute.

    Every call raises what the executor answered, DeadlineExceeded, Unavailable NOT_CONNECTED where it surely did not
    arrive, or Unavailable LINK_LOST where the executor ended meanwhile.

    Args:
        address: unix:PATH of its link.
    """

    def __init__(self, links: Links, address: str) -> None:
        self._links, self.address = links, address

    async def describe(self, timeout_s: float) -> core.DescribeResponse:
        """What is mapped, who computes, how much memory is used."""
        answer = await self._ask(core.DESCRIBE, core.DescribeRequest(), timeout_s)
        return _parse(core.DescribeResponse, answer)

    async def most_working_bytes(self, timeout_s: float) -> Mapping[str, int]:
        """The most that the sessions and replays of each mapped version held beside its weights, together."""
        answer = await self._ask(core.DESCRIBE, core.DescribeRequest(working_only=True), timeout_s)
        models = _parse(core.DescribeResponse, answer).models
        return {model.version_id: model.most_working_bytes for model in models}

    async def map_model(
        self,
        version_id: str,
        attachment_id: str,
        *,
        base: int,
        size_bytes: int,
        image: Path | None,
        timeout_s: float,
        groups: Sequence[tuple[int, int]] = (),
        layout: str = "",
        order: Path | None = None,
        working_bytes: int = 0,
    ) -> None:
        """Brings a version's weights under their range.

        Args:
            base: where the range starts, as the control plane gave it.
            image: file with the host copy; None: zeros.
            groups: (offset, size) in bytes, in the order in which they are copied; empty: from front to back.
            layout: digest of how the weights lie in the range; tapes must have been recorded for the same.
            order: without groups, a tape of the version: what it uses first is copied first.
            working_bytes: what replays of its tapes may hold beside the weights; 0: the executor's default.
        """
        request = core.MapModelRequest(
            version_id=version_id,
            attachment_id=attachment_id,
            base=base,
            size_bytes=size_bytes,
            image_path=str(image) if image else "",
            groups=[core.CopyGroup(offset_bytes=offset, size_bytes=size) for offset, size in groups],
            layout=layout,
            order_path=str(order) if order else "",
            working_bytes=working_bytes,
        )
        await self._ask(core.MAP_MODEL, request, timeout_s)

    async def unmap_model(self, version_id: str, timeout_s: float) -> int:
        """Ends the version's sessions and gives its memory back; how many bytes."""
        answer = await self._ask(core.UNMAP_MODEL, core.UnmapModelRequest(version_id=version_id), timeout_s)
        return int(_parse(core.UnmapModelResponse, answer).freed_bytes)

    async def open_session(
        self,
        session_id: str,
        socket: Path,
        timeout_s: float,
        *,
        version_id: str = "",
        limits: SessionLimits | None = None,
        peer_user: int = 0,
        record: bool = False,
        candidates: Path | None = None,
    ) -> None:
        """Makes rings and listens at `socket` for the one process that may use them.

        Args:
            peer_user: that process's user; 0: ours.
            record: whether its requests are recorded as tapes; see `save_tapes`.
            candidates: the version's own folder, where what requests did waits for a second one, over sessions.
        """
        bounds = limits or SessionLimits()
        request = core.OpenSessionRequest(
            session_id=session_id,
            version_id=version_id,
            socket_path=str(socket),
            limits=core.SessionLimits(
                ring_bytes=bounds.ring_bytes, scratch_bytes=bounds.scratch_bytes, connect_s=bounds.connect_s
            ),
            peer_user=peer_user,
            record=record,
            candidates_folder=str(candidates) if candidates else "",
        )
        await self._ask(core.OPEN_SESSION, request, timeout_s)

    async def close_session(self, session_id: str, timeout_s: float) -> None:
        """Ends a session; returns when nothing of it is left."""
        await self._ask(core.CLOSE_SESSION, core.CloseSessionRequest(session_id=session_id), timeout_s)

    async def save_tapes(self, session_id: str, folder: Path, timeout_s: float) -> core.SaveTapesResponse:
        """Writes what a session has recorded as files; also says which requests gave no tape, and why."""
        request = core.SaveTapesRequest(session_id=session_id, folder=str(folder))
        return _parse(core.SaveTapesResponse, await self._ask(core.SAVE_TAPES, request, timeout_s))

    async def load_tapes(
        self, version_id: str, tapes: Sequence[core.TapeFile], timeout_s: float
    ) -> list[core.CoreTape]:
        """Reads tapes of a mapped version; all that it has now."""
        answer = await self._ask(core.LOAD_TAPES, core.LoadTapesRequest(version_id=version_id, tapes=tapes), timeout_s)
        return list(_parse(core.LoadTapesResponse, answer).tapes)

    async def execute(self, request: device.ExecuteRequest, timeout_s: float) -> device.ExecuteResponse:
        """Replays a tape for one request. Raises FailedPrecondition NO_TAPE, STALE_LEASE; see ExecutorService."""
        return _parse(device.ExecuteResponse, await self._ask(EXECUTE, request, timeout_s))

    async def _ask(self, method: str, request: Message, timeout_s: float) -> Buffer:
        return await self._links.call(self.address, method.encode(), (request.SerializeToString(),), timeout_s)


def _parse(kind: type[M], answer: Buffer) -> M:
    message = kind()
    try:
        message.ParseFromString(bytes(answer))
    except DecodeError as error:
        raise Internal("BAD_ANSWER", f"the executor's {kind.__name__} cannot be read: {error}") from None
    return message

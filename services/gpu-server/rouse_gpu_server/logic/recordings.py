"""What instances have recorded becomes tapes of the node, and of all others.

An instance that executed requests is asked what it has recorded, at intervals that grow while there is nothing new;
then its executor writes the tapes, which takes a turn on the device. Nothing here is on a request's way, and whatever
goes wrong costs the tapes and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rouse_common.clock import Clock
from rouse_common.errors import RouseError
from rouse_contracts import device as contract
from rouse_contracts import tapes
from rouse_contracts.core import SaveTapesResponse
from rouse_contracts.repository import StateKind
from rouse_gpu_server import metrics
from rouse_gpu_server.adapters.cores import SOCKETS
from rouse_gpu_server.adapters.executors import Executors
from rouse_gpu_server.logic.sessions import Sessions, records
from rouse_gpu_server.logic.shelf import Shelf
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Executor, Model

LOG = logging.getLogger(__name__)
FIRST_S, LONGEST_S = 0.5, 60.0
ASK_LIMIT_S = 5.0


@dataclass
class _Seen:
    """An instance: when it may be asked again; of its session, how many requests of each kind its tapes were saved
    after, and which tapes, the n-th of a signature, the node keeps."""

    asked_at: float
    interval_s: float = FIRST_S
    attachment_id: str = ""
    saved: dict[str, int] = field(default_factory=dict)
    kept: set[tuple[str, int]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    again: bool = False


class Recordings:
    """Args:
    memory: where the executors may write.
    """

    def __init__(
        self,
        pool: Pool,
        executors: Executors,
        sessions: Sessions,
        shelf: Shelf,
        background: Background,
        clock: Clock,
        memory: Path,
    ) -> None:
        self._pool, self._executors, self._sessions, self._shelf = pool, executors, sessions, shelf
        self._background, self._clock = background, clock
        self._folder = memory / SOCKETS
        self._seen: dict[str, _Seen] = {}

    def executed(self, executor: Executor, model: Model) -> None:
        """An instance has executed requests: it may have recorded some."""
        if not self._sessions.enabled or not records(model.version.spec) or not executor.alive:
            return
        seen = self._seen.get(executor.instance_id)
        if seen is None:
            for gone in [i for i in self._seen if i not in self._pool.executors and self._seen[i].task is None]:
                del self._seen[gone]
            seen = self._seen[executor.instance_id] = _Seen(self._clock.monotonic() - FIRST_S)
        seen.again = True
        if seen.task is None:
            seen.task = self._background.start(self._look_later(executor, model, seen), f"tapes {executor.instance_id}")

    async def _look_later(self, executor: Executor, model: Model, seen: _Seen) -> None:
        try:
            while seen.again and executor.alive:
                wait_s = seen.asked_at + seen.interval_s - self._clock.monotonic()
                try:
                    async with asyncio.timeout(max(0.0, wait_s)):
                        await executor.gone.wait()
                except TimeoutError:
                    seen.again, seen.asked_at = False, self._clock.monotonic()
                    new = await self._look(executor, model, seen)
                    seen.interval_s = FIRST_S if new else min(2 * seen.interval_s, LONGEST_S)
        finally:
            seen.task = None

    async def _look(self, executor: Executor, model: Model, seen: _Seen) -> bool:
        """Whether there was something new."""
        try:
            listed = await self._executors.recordings(executor.address, ASK_LIMIT_S)
            model.eager_reason = listed.refused or model.eager_reason
            if seen.attachment_id != executor.attachment_id:
                seen.attachment_id, seen.saved, seen.kept = executor.attachment_id, {}, set()
            kinds = {kind.signature: kind for kind in listed.recordings}
            # The first of a session may be the second that does the same: an earlier session's is kept.
            if not any(kind.requests != seen.saved.get(signature) for signature, kind in kinds.items()):
                return False
            seen.saved = {signature: kind.requests for signature, kind in kinds.items()}
            await self._save(executor, model, kinds, seen)
            return True
        except (RouseError, OSError) as error:
            metrics.STATES_FAILED.labels("publish").inc()
            LOG.warning(
                "no tapes function=%s instance=%s reason=%s", model.function, executor.instance_id, error
            )  # fmt: skip
            return False

    async def _save(
        self, executor: Executor, model: Model, kinds: Mapping[str, contract.Recording], seen: _Seen
    ) -> None:
        # Neither instances nor anybody else may write there: what is loaded was made by an executor.
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._folder))
        try:
            saved = await self._sessions.save_tapes(executor.instance_id, folder)
            if saved is not None and await self._publish(model, kinds, saved, folder, seen):
                await self._sessions.refresh_tapes(model)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder)

    async def _publish(
        self,
        model: Model,
        kinds: Mapping[str, contract.Recording],
        saved: SaveTapesResponse,
        folder: Path,
        seen: _Seen,
    ) -> int:
        """Keeps the tapes that are new; how many. Beside tapes of the same inputs that the node has they are others:
        an instance executes only what those do not answer."""
        for refused in saved.refused:
            if refused.signature in kinds:
                model.eager_reason = refused.reason
        held = {name for name, _, _ in self._shelf.tapes(model.version, model.artefact)}
        numbers: dict[str, int] = {}
        published = 0
        for tape in saved.tapes:
            kind = kinds.get(tape.signature)
            if kind is None:
                continue
            number = numbers[tape.signature] = numbers.get(tape.signature, -1) + 1
            if (tape.signature, number) in seen.kept:
                continue
            seen.kept.add((tape.signature, number))
            names = [_name(kind, free) for free in range(tapes.MAX_VARIANTS)]
            name = next((name for name in names if name not in held), None)
            if None in names:
                model.eager_reason = "the names of its inputs and outputs are too long for a tape's"
            elif name is None:
                model.eager_reason = f"it has {tapes.MAX_VARIANTS} tapes for values of the same inputs already"
            elif len(held) >= tapes.MAX_TAPES:
                model.eager_reason = f"it has {tapes.MAX_TAPES} tapes, and no more are kept"
            else:
                path = folder / Path(tape.path).name
                await self._shelf.publish(model.version, model.artefact, StateKind.STATE_KIND_TAPE, name, path)
                held.add(name)
                published += 1
        if published:
            LOG.info("tapes published function=%s version=%s count=%d", model.function, model.version_id, published)
        return published


def _name(kind: contract.Recording, number: int) -> str | None:
    inputs = tuple(tapes.Input(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in kind.inputs)
    return tapes.name_of(tapes.Answers(inputs, tuple(kind.output_names), number))

"""Materialised states: recorded beside their artefacts, bounded, told to nodes that can use them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from rouse_contracts import states as rules
from rouse_contracts.repository import MadeWith, State
from rouse_model_repository.adapters.bucket import artefact_not_found
from rouse_model_repository.inspection import paths
from rouse_model_repository.library import Library
from rouse_model_repository.state import Index

LOG = logging.getLogger(__name__)


class States:
    """The states of the repository's artefacts."""

    def __init__(self, index: Index, library: Library, clock: Clock) -> None:
        self._index, self._library, self._clock = index, library, clock

    async def put(self, state: State) -> State:
        """Records a state whose blob is uploaded. Raises what PutState documents."""
        artefact = await self._library.get(state.artefact_digest)
        paths.check_digest(state.digest)
        try:
            rules.check(state)
        except rules.BadState as error:
            raise InvalidArgument("BAD_STATE", f"state of artefact {artefact.digest}: {error}") from None
        if state.size_bytes > rules.MAX_STATE_BYTES:
            raise ResourceExhausted(
                "STATE_TOO_LARGE",
                f"state '{state.name}' of artefact {artefact.digest} has {state.size_bytes} bytes; "
                f"at most {rules.MAX_STATE_BYTES} are kept",
                artefact=artefact.digest,
            )
        layout = rules.layout_digest(artefact.layout)
        if state.made_with.layout_digest != layout:
            raise FailedPrecondition(
                "LAYOUT_MISMATCH",
                f"state '{state.name}' was made with the layout {state.made_with.layout_digest}, the weights of "
                f"artefact {artefact.digest} have {layout}; make it anew",
                artefact=artefact.digest,
            )
        kept = State()
        kept.CopyFrom(state)
        kept.created_at.FromMilliseconds(round(self._clock.now() * 1000))

        def added(known: Sequence[State]) -> Sequence[State]:
            self._check_blob(state)  # others may have deleted it while this waited for its turn
            return _with(known, kept)

        self._check_blob(state)
        with self._index.pinned({state.digest}):
            freed = await self._library.change_states(artefact.digest, added)
        LOG.info(
            "recorded state artefact=%s kind=%s name=%s size_bytes=%d torch=%s device=%s freed_bytes=%d",
            artefact.digest, rules.KINDS[state.kind], state.name, state.size_bytes, state.made_with.torch_version,
            state.made_with.device_type, freed,
        )  # fmt: skip
        return kept

    def _check_blob(self, state: State) -> None:
        blob = self._index.blobs.get(state.digest)
        if blob is None:
            text = f"blob {state.digest} of state '{state.name}' is not uploaded; upload it and record the state again"
            raise FailedPrecondition("BLOB_MISSING", text, digest=state.digest)
        if blob.size_bytes != state.size_bytes:
            text = f"state '{state.name}' has {blob.size_bytes} bytes, not the {state.size_bytes} that it says"
            raise InvalidArgument("BAD_STATE", text, digest=state.digest)
        if blob.pickle:
            text = f"state '{state.name}': {blob.pickle}; a state is no pickle"
            raise InvalidArgument("PICKLE_REFUSED", text, digest=state.digest)

    def list(self, artefact: str, wanted: MadeWith) -> Sequence[State]:
        """Raises NotFound ARTEFACT_NOT_FOUND, InvalidArgument BAD_DIGEST."""
        if paths.check_digest(artefact) not in self._index.artefacts:
            raise artefact_not_found(artefact)
        return [state for state in self._index.states_of(artefact) if rules.matches(state.made_with, wanted)]

    async def delete(self, artefact: str, wanted: MadeWith) -> int:
        """Forgets states; returns the bytes freed. Raises as `list`."""

        def others(known: Sequence[State]) -> Sequence[State]:
            return [state for state in known if not rules.matches(state.made_with, wanted)]

        return await self._library.change_states(artefact, others)


def _with(known: Sequence[State], state: State) -> Sequence[State]:
    """The states with a new one, which replaces its like; the oldest leave where there are too many."""
    identity = rules.identity(state)
    kept = [other for other in known if rules.identity(other) != identity] + [state]
    while len(kept) > rules.MAX_STATES or sum(other.size_bytes for other in kept) > rules.MAX_TOTAL_BYTES:
        kept.pop(0)
    return kept

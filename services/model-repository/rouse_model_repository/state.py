"""What the repository holds, in memory: which blobs there are, who names them, and who is about to.

A blob is deleted when no artefact names it and nobody is about to: an upload, or the answer that an upload is
not needed, leaves a claim on it, which the commit of its artefact takes back, or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rouse_contracts.repository import Artefact, State
from rouse_model_repository import metrics

STATES = "states/"


@dataclass
class Blob:
    """One blob.

    Args:
        pickle: why it is taken for a pickle, in words; empty where it is not.
        named_by: digests of the artefacts that it is part of; after STATES, of those that it is a state of.
        claims: uploads and answers that count on it until a commit, the last at `claimed_at` (seconds).
        pins: commits at work on it.
    """

    digest: str
    size_bytes: int
    pickle: str = ""
    named_by: set[str] = field(default_factory=set)
    claims: int = 0
    claimed_at: float = 0.0
    pins: int = 0

    @property
    def droppable(self) -> bool:
        return not self.named_by and not self.claims and not self.pins


class Index:
    """The blobs and artefacts of the repository, as its bucket has them."""

    def __init__(self) -> None:
        self.blobs: dict[str, Blob] = {}
        # Without the tensors of their layouts.
        self.artefacts: dict[str, Artefact] = {}
        # By artefact, oldest first.
        self._states: dict[str, tuple[State, ...]] = {}
        # Digests that changed while the bucket was being listed; None at other times.
        self._changed: set[str] | None = None

    def add_blob(self, digest: str, size_bytes: int, pickle: str) -> None:
        """A blob that was just stored."""
        self.blobs.setdefault(digest, Blob(digest, size_bytes, pickle))
        self._change(digest)

    def drop_blob(self, digest: str) -> None:
        del self.blobs[digest]
        self._change(digest)

    def claim(self, digest: str, now: float) -> bool:
        """Keeps a blob for a commit to come; False where it is not there."""
        blob = self.blobs.get(digest)
        if blob is None:
            return False
        blob.claims += 1
        blob.claimed_at = now
        return True

    @contextmanager
    def pinned(self, digests: Iterable[str]) -> Iterator[None]:
        """Keeps blobs while a commit reads them."""
        pinned = [self.blobs[digest] for digest in digests]
        for blob in pinned:
            blob.pins += 1
        try:
            yield
        finally:
            for blob in pinned:
                blob.pins -= 1

    def record(self, artefact: Artefact) -> None:
        """An artefact that was just stored, or stored again; takes back a claim on each of its blobs."""
        known = Artefact()
        known.CopyFrom(artefact)
        known.layout.ClearField("tensors")
        self.artefacts[artefact.digest] = known
        for blob in self._blobs_of(artefact):
            blob.named_by.add(artefact.digest)
            blob.claims = max(0, blob.claims - 1)
        self._change(artefact.digest)

    def states_of(self, artefact: str) -> tuple[State, ...]:
        """The materialised states of an artefact, oldest first."""
        return self._states.get(artefact, ())

    def set_states(self, artefact: str, states: Sequence[State]) -> list[Blob]:
        """Replaces the states of an artefact as they were just stored; takes back a claim on each that is new.
        Returns the blobs that may go."""
        before = self.states_of(artefact)
        for state in states:
            if state not in before and (blob := self.blobs.get(state.digest)) is not None:
                blob.claims = max(0, blob.claims - 1)
        self._name_states(artefact, states)
        self._change(STATES + artefact)
        named = {state.digest for state in states}
        gone = [self.blobs[state.digest] for state in before if state.digest in self.blobs.keys() - named]
        for blob in gone:
            blob.named_by.discard(STATES + artefact)
        return [blob for blob in gone if blob.droppable]

    def _name_states(self, artefact: str, states: Sequence[State]) -> None:
        """Takes over states, but for those without a blob."""
        self._states.pop(artefact, None)
        kept = tuple(state for state in states if state.digest in self.blobs)
        for state in kept:
            self.blobs[state.digest].named_by.add(STATES + artefact)
        if kept:
            self._states[artefact] = kept

    def forget(self, artefact: str) -> list[Blob]:
        """Removes an artefact with its states; returns the blobs that may go with it."""
        freed = {blob.digest: blob for blob in self.set_states(artefact, ())}
        known = self.artefacts.pop(artefact)
        self._change(artefact)
        blobs = self._blobs_of(known)
        for blob in blobs:
            blob.named_by.discard(artefact)
        return list((freed | {blob.digest: blob for blob in blobs if blob.droppable}).values())

    def expired(self, now: float, after_s: float) -> list[Blob]:
        """Blobs that no artefact came to name in time. Lets go of claims that are too old."""
        for blob in self.blobs.values():
            if blob.claims and now - blob.claimed_at > after_s:
                blob.claims = 0
        return [blob for blob in self.blobs.values() if blob.droppable]

    # ---- Listing the bucket ---------------------------------------------------------------------

    def begin_listing(self) -> None:
        """What changes from now on is not overwritten by the listing."""
        self._changed = set()

    def finish_listing(
        self,
        blobs: Iterable[Blob],
        artefacts: Iterable[Artefact],
        now: float,
        states: Mapping[str, Sequence[State]] | None = None,
    ) -> None:
        """Takes over what the bucket has. A blob that nothing names gets a claim, as its commit may be on its way.
        States without artefact or blob are left out."""
        changed, self._changed = self._changed or set(), None
        before, was = self.blobs, self.artefacts
        self.blobs = {blob.digest: before.get(blob.digest, blob) for blob in blobs if blob.digest not in changed}
        self.blobs |= {digest: blob for digest, blob in before.items() if digest in changed}
        self.artefacts = {digest: artefact for digest, artefact in was.items() if digest in changed}
        for blob in self.blobs.values():
            blob.named_by = set()
        for artefact in artefacts:
            if artefact.digest not in changed:
                self.artefacts[artefact.digest] = artefact
        for artefact in list(self.artefacts.values()):
            for blob in self._blobs_of(artefact):
                blob.named_by.add(artefact.digest)
        self._list_states(states or {}, changed)
        for blob in self.blobs.values():
            if blob.droppable:
                self.claim(blob.digest, now)
        self.show()

    def _list_states(self, states: Mapping[str, Sequence[State]], changed: set[str]) -> None:
        found = {digest: listed for digest, listed in states.items() if STATES + digest not in changed}
        found |= {digest: kept for digest, kept in self._states.items() if STATES + digest in changed}
        self._states = {}
        for digest in found.keys() & self.artefacts.keys():
            self._name_states(digest, found[digest])

    def missing_of(self, artefact: Artefact) -> list[str]:
        """Digests that an artefact names and the bucket has not."""
        return sorted(digest for digest in blobs_of(artefact) if digest not in self.blobs)

    def _blobs_of(self, artefact: Artefact) -> list[Blob]:
        # A bucket that was restored from an old copy may lack some.
        return [self.blobs[digest] for digest in blobs_of(artefact) if digest in self.blobs]

    def _change(self, digest: str) -> None:
        if self._changed is not None:
            self._changed.add(digest)
        self.show()

    def show(self) -> None:
        """Puts the present numbers into the metrics."""
        metrics.ARTEFACTS.set(len(self.artefacts))
        metrics.BLOBS.set(len(self.blobs))


def blobs_of(artefact: Artefact) -> set[str]:
    """The digests of an artefact's files."""
    return {file.digest for file in artefact.files}

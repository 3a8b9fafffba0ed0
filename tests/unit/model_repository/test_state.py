"""The index: what may be deleted, and what a listing of the bucket changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from rouse_contracts.functions import ArtefactFile
from rouse_contracts.repository import Artefact, State
from rouse_model_repository.state import STATES, Blob, Index

BLOBS = [f"blob-{n}" for n in range(5)]


def artefact(blobs: frozenset[str]) -> Artefact:
    made = Artefact(digest="+".join(sorted(blobs)))
    made.files.extend(ArtefactFile(path=digest, digest=digest, size_bytes=1) for digest in sorted(blobs))
    return made


class Deploys(RuleBasedStateMachine):
    """Deploys, deletions and collections at once, none of which may take a blob from another.

    A deploy asks for its blobs, uploads those that are missing, and commits; between these steps anything
    else may happen. Its commit must find all of them.
    """

    deploys = Bundle("deploys")

    @initialize()
    def begin(self) -> None:
        self.index, self.now = Index(), 0.0

    @rule(target=deploys, blobs=st.frozensets(st.sampled_from(BLOBS), min_size=1, max_size=3))
    def ask_and_upload(self, blobs: frozenset[str]) -> tuple[float, frozenset[str]]:
        for digest in blobs:
            if not self.index.claim(digest, self.now):
                self.index.add_blob(digest, 1, "")
                assert self.index.claim(digest, self.now)
        return self.now, blobs

    @rule(deploy=consumes(deploys))
    def commit(self, deploy: tuple[float, frozenset[str]]) -> None:
        begun, blobs = deploy
        if any(digest not in self.index.blobs for digest in blobs):
            assert self.now - begun > 10, "only time may take what a deploy counts on"
            return
        with self.index.pinned(blobs):
            assert not any(blob.droppable for blob in map(self.index.blobs.get, blobs) if blob)
            self.index.record(artefact(blobs))

    @rule(data=st.data(), blob=st.sampled_from(BLOBS))
    def record_state(self, data: st.DataObject, blob: str) -> None:
        """One of at most two states an artefact, of bytes that may be a file as well."""
        if self.index.artefacts:
            chosen = data.draw(st.sampled_from(sorted(self.index.artefacts)))
            if not self.index.claim(blob, self.now):
                self.index.add_blob(blob, 1, "")
                assert self.index.claim(blob, self.now)
            kept = [*self.index.states_of(chosen), State(artefact_digest=chosen, digest=blob)][-2:]
            for freed in self.index.set_states(chosen, kept):
                self.index.drop_blob(freed.digest)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.index.artefacts:
            chosen = data.draw(st.sampled_from(sorted(self.index.artefacts)))
            for blob in self.index.forget(chosen):
                self.index.drop_blob(blob.digest)

    @rule(seconds=st.floats(0, 8))
    def collect(self, seconds: float) -> None:
        self.now += seconds
        for blob in self.index.expired(self.now, 10):
            self.index.drop_blob(blob.digest)

    @rule()
    def list_again(self) -> None:
        blobs = [Blob(blob.digest, blob.size_bytes) for blob in self.index.blobs.values()]
        artefacts = list(self.index.artefacts.values())
        states = {known: self.index.states_of(known) for known in self.index.artefacts}
        self.index.begin_listing()
        self.index.finish_listing(blobs, artefacts, self.now, states)
        assert {known: self.index.states_of(known) for known in self.index.artefacts} == states

    @invariant()
    def artefacts_have_their_blobs(self) -> None:
        for known in self.index.artefacts.values():
            assert self.index.missing_of(known) == []
            for file in known.files:
                assert known.digest in self.index.blobs[file.digest].named_by
            for state in self.index.states_of(known.digest):
                assert STATES + known.digest in self.index.blobs[state.digest].named_by

    @invariant()
    def nothing_names_a_blob_but_what_there_is(self) -> None:
        there = set(self.index.artefacts) | {STATES + digest for digest in self.index.artefacts}
        assert all(blob.named_by <= there for blob in self.index.blobs.values())


TestDeploys = Deploys.TestCase
TestDeploys.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_what_changed_while_the_bucket_was_listed_stays() -> None:
    index = Index()
    index.add_blob("old", 1, "")
    index.add_blob("gone", 1, "")
    index.begin_listing()
    index.add_blob("new", 2, "")
    index.drop_blob("gone")
    index.record(artefact(frozenset({"new"})))
    index.finish_listing([Blob("old", 1), Blob("gone", 1)], [], 5.0)
    assert set(index.blobs) == {"old", "new"}
    assert set(index.artefacts) == {"new"}
    assert index.blobs["new"].named_by == {"new"}
    assert index.blobs["old"].claims == 1


def test_an_artefact_that_lost_a_blob_can_be_forgotten() -> None:
    index = Index()
    index.begin_listing()
    index.finish_listing([Blob("a", 1)], [artefact(frozenset({"a", "b"}))], 0.0)
    assert index.missing_of(index.artefacts["a+b"]) == ["b"]
    assert [blob.digest for blob in index.forget("a+b")] == ["a"]

"""What a gateway remembers of sequences: bounded, and no longer than their nodes do."""

from __future__ import annotations

import pytest

from rouse_common.errors import InvalidArgument, Unavailable
from rouse_contracts.functions import RequestOptions, Sequence
from rouse_gateway import sequences
from rouse_gateway.sequences import IDLE_S, Bond, Sequences
from rouse_testkit.clock import ManualClock


def bond(known: Sequences, name: str = "s", tenant: str = "t", **place: bool) -> Bond:
    made = known.bond("f", "v1", tenant, RequestOptions(sequence=Sequence(id=name, **place)))
    assert made is not None
    return made


def begin(known: Sequences, name: str = "s", node_id: str = "n0") -> None:
    first = bond(known, name, start=True)
    known.sent(first, node_id)
    known.answered(first)


def test_a_sequence_has_a_home_from_its_start_to_its_end() -> None:
    known = Sequences(ManualClock())
    assert known.bond("f", "v1", "t", None) is None
    assert known.bond("f", "v1", "t", RequestOptions(priority=1)) is None
    assert bond(known).home == ""
    begin(known)
    assert bond(known).home == "n0"
    # Of another tenant it is another one.
    assert bond(known, tenant="u").home == ""
    # Starting it again, it may go elsewhere.
    assert bond(known, start=True).home == ""
    known.answered(bond(known, end=True))
    assert bond(known).home == ""


def test_it_is_forgotten_when_nodes_forget_it() -> None:
    clock = ManualClock()
    known = Sequences(clock)
    begin(known)
    clock.advance(IDLE_S - 1)
    assert bond(known).home == "n0"
    clock.advance(IDLE_S + 1)
    assert bond(known).home == ""
    assert len(known) == 0


def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 3)
    known = Sequences(ManualClock())
    for number in range(10):
        begin(known, f"s{number}")
        assert len(known) <= 3
    assert bond(known, "s9").home == "n0"
    assert bond(known, "s6").home == ""


def test_what_the_node_forgot_is_lost_and_what_never_started_is_not() -> None:
    known = Sequences(ManualClock())
    first = bond(known, start=True)
    known.sent(first, "n0")
    unknown = InvalidArgument("SEQUENCE_NOT_STARTED", "was not started here")
    assert known.explained(bond(known), unknown) is unknown
    known.answered(first)
    assert known.explained(bond(known), unknown).reason == "SEQUENCE_LOST"
    other = Unavailable("EXECUTOR_LOST", "gone")
    assert known.explained(bond(known), other) is other

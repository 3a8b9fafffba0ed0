"""Routing: near weights and short queues win, equal nodes share, and the reason names the numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.routing import DEFAULTS, Candidate, Decision, Snapshot, State, decide, swap_cost, waiting

RESIDENCIES = ("EXECUTING", "DEVICE", "SWAPPING_IN", "HOST", "DISK", "ABSENT", "")
candidates = st.lists(
    st.builds(
        Candidate,
        node_id=st.integers(0, 40).map("n{}".format),
        residency=st.sampled_from(RESIDENCIES),
        queued_requests=st.integers(0, 100),
    ),
    max_size=12,
    unique_by=lambda c: c.node_id,
).map(tuple)
snapshots = candidates.flatmap(
    lambda found: st.builds(
        Snapshot,
        candidates=st.just(found),
        in_flight=st.dictionaries(st.integers(0, 40).map("n{}".format), st.integers(0, 100)),
        excluded=st.frozensets(st.sampled_from([c.node_id for c in found])) if found else st.just(frozenset()),
        sequence=st.just(""),
        home=st.just(""),
    )
)
states = st.builds(State, turn=st.integers(0, 1000))


def choose(*nodes: Candidate, **fields: Any) -> Decision:
    return decide(Snapshot(nodes, **fields), State(), DEFAULTS, 0.0)[0]


def cost(candidate: Candidate, snapshot: Snapshot) -> float:
    return swap_cost(candidate.residency, DEFAULTS) + waiting(candidate, snapshot)


@given(snapshots, states)
def test_the_choice_is_the_cheapest_node_that_is_left(snapshot: Snapshot, state: State) -> None:
    decision, after = decide(snapshot, state, DEFAULTS, 0.0)
    left = {c.node_id: cost(c, snapshot) for c in snapshot.candidates if c.node_id not in snapshot.excluded}
    if not left:
        assert decision.node_id is None
        assert after == state
    else:
        assert decision.node_id in left
        assert left[decision.node_id] == min(left.values())
        assert after.turn == state.turn + 1
        assert decision.node_id in decision.reason


@given(snapshots, states)
def test_a_longer_queue_never_attracts(snapshot: Snapshot, state: State) -> None:
    chosen = decide(snapshot, state, DEFAULTS, 0.0)[0].node_id
    for index, candidate in enumerate(snapshot.candidates):
        if candidate.node_id == chosen:
            continue
        longer = replace(candidate, queued_requests=candidate.queued_requests + 7)
        changed = (*snapshot.candidates[:index], longer, *snapshot.candidates[index + 1 :])
        assert decide(snapshot._replace(candidates=changed), state, DEFAULTS, 0.0)[0].node_id == chosen


@given(st.integers(1, 8), st.integers(0, 50))
def test_equal_nodes_are_taken_in_turn(count: int, turn: int) -> None:
    snapshot = Snapshot(tuple(Candidate(f"n{i}", "DEVICE", 3) for i in range(count)))
    state, taken = State(turn), []
    for _ in range(2 * count):
        decision, state = decide(snapshot, state, DEFAULTS, 0.0)
        taken.append(decision.node_id)
    assert all(taken.count(f"n{i}") == 2 for i in range(count))


def test_nearer_weights_win_over_equal_queues() -> None:
    order = ["DEVICE", "SWAPPING_IN", "HOST", "DISK"]
    for near, far in itertools.pairwise(order):
        assert choose(Candidate("far", far, 2), Candidate("near", near, 2)).node_id == "near"
    assert choose(Candidate("a", "HOST", 0), Candidate("b", "EXECUTING", 0)).node_id == "b"


def test_a_long_queue_outweighs_a_swap_from_host_memory_and_a_longer_one_one_from_disk() -> None:
    assert choose(Candidate("busy", "DEVICE", 3), Candidate("idle", "HOST", 0)).node_id == "busy"
    assert choose(Candidate("busy", "DEVICE", 5), Candidate("idle", "HOST", 0)).node_id == "idle"
    assert choose(Candidate("busy", "DEVICE", 30), Candidate("idle", "DISK", 0)).node_id == "busy"
    assert choose(Candidate("busy", "DEVICE", 40), Candidate("idle", "DISK", 0)).node_id == "idle"


def test_what_this_gateway_has_under_way_counts_where_the_report_is_old() -> None:
    nodes = Candidate("a", "DEVICE", 0), Candidate("b", "DEVICE", 2)
    assert choose(*nodes).node_id == "a"
    assert choose(*nodes, in_flight={"a": 5}).node_id == "b"


@given(snapshots, st.text(min_size=1, max_size=5), states)
def test_requests_of_a_sequence_find_the_same_node_whatever_else_changes(
    snapshot: Snapshot, sequence: str, state: State
) -> None:
    left = [c for c in snapshot.candidates if c.node_id not in snapshot.excluded]
    decision, after = decide(snapshot._replace(sequence=sequence), state, DEFAULTS, 0.0)
    assert after == state
    assert (decision.node_id is None) == (not left)
    idle = tuple(Candidate(c.node_id, "HOST", 0) for c in reversed(left))
    assert choose(*idle, sequence=sequence).node_id == decision.node_id
    # Where another node goes away it stays where it is.
    stays = tuple(c for c in idle if c.node_id == decision.node_id or c.node_id < "n20")
    assert choose(*stays, sequence=sequence).node_id == decision.node_id


@given(snapshots, st.sampled_from([f"n{number}" for number in range(30)]), states)
def test_a_sequence_under_way_goes_home_or_nowhere(snapshot: Snapshot, home: str, state: State) -> None:
    decision, after = decide(snapshot._replace(sequence="s", home=home), state, DEFAULTS, 0.0)
    assert after == state
    there = home in {c.node_id for c in snapshot.candidates}
    assert decision.lost == (not there)
    assert decision.node_id == (home if there and home not in snapshot.excluded else None)
    assert home in decision.reason


def test_sequences_are_spread_over_the_nodes() -> None:
    nodes = [Candidate(f"n{number}", "HOST", 0) for number in range(4)]
    taken = {choose(*nodes, sequence=str(number)).node_id for number in range(100)}
    assert len(taken) == 4


def test_the_reason_says_what_was_weighed() -> None:
    decision = choose(Candidate("a", "HOST", 2), Candidate("b", "DISK", 0))
    assert decision.reason == "a of 2 nodes: weights HOST, 2 waiting, cost 6"
    gone = choose(Candidate("a", "HOST", 2), excluded=frozenset({"a"}))
    assert gone == Decision(None, "none of 1 nodes is left, 1 turned the request away")

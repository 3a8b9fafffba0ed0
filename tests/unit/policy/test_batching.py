"""Which requests leave together, and when: never too many, never too late, never one that does not belong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import batching
from rouse_policy.batching import Action, Cause, Settings, Snapshot, State, Waiting, decide, learn, predict

TIMES = st.floats(0, 10)
REQUESTS = st.builds(
    Waiting,
    rows=st.integers(1, 6),
    size_bytes=st.integers(0, 50),
    kind=st.sampled_from([None, "a", "b"]),
    arrived=TIMES,
    deadline=TIMES,
)
SETTINGS = st.builds(
    Settings,
    max_rows=st.integers(1, 12),
    max_delay_s=st.sampled_from([0.0, 0.5, 5.0]),
    max_bytes=st.integers(1, 200),
    objective_s=st.sampled_from([0.0, 1.0]),
)
PROFILES = st.lists(st.tuples(st.integers(1, 12), st.floats(0.001, 3)), max_size=6)


def state_after(executions: list[tuple[int, float]]) -> State:
    state = State()
    for rows, seconds in executions:
        state = learn(state, rows, seconds, Settings())
    return state


def request(rows: int = 1, arrived: float = 0.0, deadline: float = 100.0, kind: str | None = "a") -> Waiting:
    return Waiting(rows, 10, kind, arrived, deadline)


@given(st.lists(REQUESTS, max_size=12), st.booleans(), SETTINGS, PROFILES, TIMES)
def test_a_batch_is_of_one_kind_in_order_and_fits(
    waiting: list[Waiting], granted: bool, settings: Settings, executions: list[tuple[int, float]], now: float
) -> None:
    state = state_after(executions)
    decision, after = decide(Snapshot(waiting, granted), state, settings, now)
    assert after == state
    assert decision.reason
    alive = [position for position, waits in enumerate(waiting) if waits.deadline > now]
    if not alive:
        assert (decision.action, decision.members) == (Action.WAIT, ())
        return
    members = [waiting[position] for position in decision.members]
    # The first that is in time is always among them, so nobody is passed over for ever.
    assert decision.members[0] == alive[0]
    assert list(decision.members) == sorted(set(decision.members))
    assert set(decision.members) <= set(alive)
    assert decision.rows == sum(member.rows for member in members)
    if len(members) > 1:
        assert {member.kind for member in members} == {members[0].kind}
        assert members[0].kind is not None
        assert decision.rows <= settings.max_rows
        assert sum(member.size_bytes for member in members) <= settings.max_bytes
    # Within a kind nobody overtakes.
    same = [position for position in alive if waiting[position].kind == waiting[alive[0]].kind]
    assert list(decision.members) == same[: len(members)]
    if granted or settings.max_delay_s == 0:
        assert decision.action is Action.LEAVE
    if decision.action is Action.WAIT:
        assert decision.wake_at is not None
        assert now < decision.wake_at <= min(member.arrived for member in members) + settings.max_delay_s
        assert decision.predicted_s is not None
        assert all(decision.wake_at + decision.predicted_s <= member.deadline for member in members)


@given(st.lists(REQUESTS, min_size=1, max_size=12), SETTINGS, PROFILES, TIMES)
def test_no_member_makes_another_one_late(
    waiting: list[Waiting], settings: Settings, executions: list[tuple[int, float]], now: float
) -> None:
    state = state_after(executions)
    decision, _ = decide(Snapshot(waiting, granted=True), state, settings, now)
    for position in decision.members:
        alone, together = predict(state, waiting[position].rows), decision.predicted_s
        if alone is None or together is None or len(decision.members) == 1:
            continue
        ends = min(waiting[other].deadline for other in decision.members)
        hopeless = any(
            now + (predict(state, waiting[other].rows) or 0.0) + settings.margin_s > ends for other in decision.members
        )
        assert hopeless or now + together <= waiting[position].deadline


def test_without_a_delay_a_request_alone_waits_for_nobody() -> None:
    decision, _ = decide(Snapshot([request()], granted=False), State(), Settings(max_rows=8), 0.0)
    assert (decision.action, decision.cause, decision.members) == (Action.LEAVE, Cause.AT_ONCE, (0,))
    assert decision.reason == "nothing to wait for: 1 of 1 requests, 1 of 8 rows"


def test_before_anything_is_known_nothing_waits() -> None:
    settings = Settings(max_rows=8, max_delay_s=1.0)
    assert decide(Snapshot([request()], granted=False), State(), settings, 0.0)[0].action is Action.LEAVE
    known = learn(State(), 1, 0.01, settings)
    decision, _ = decide(Snapshot([request()], granted=False), known, settings, 0.0)
    assert (decision.action, decision.wake_at) == (Action.WAIT, 1.0)
    assert decision.reason == "waits 1e+03 ms more for company: 1 of 1 requests, 1 of 8 rows, 30 ms expected"


def test_a_batch_leaves_by_size_by_delay_and_by_deadline() -> None:
    settings = Settings(max_rows=4, max_delay_s=1.0)
    known = learn(State(), 4, 0.1, settings)

    def cause(*waiting: Waiting, now: float = 0.0, settings: Settings = settings) -> Cause:
        return decide(Snapshot(waiting, granted=False), known, settings, now)[0].cause

    assert cause(*[request()] * 3) is Cause.NONE
    assert cause(*[request()] * 4) is Cause.SIZE
    assert cause(request(rows=3), request(rows=2)) is Cause.SIZE
    assert cause(request(), request(arrived=0.9), now=1.0) is Cause.DELAY
    assert cause(request(deadline=0.301)) is Cause.DEADLINE
    assert cause(request(deadline=0.31)) is Cause.NONE
    in_a_hurry = Settings(max_rows=4, max_delay_s=1.0, objective_s=0.35)
    assert cause(request(), settings=in_a_hurry) is Cause.NONE
    assert cause(request(), now=0.049, settings=in_a_hurry) is Cause.DEADLINE
    # Where the objective cannot be met any more, the deadline is what counts.
    assert cause(request(), now=0.2, settings=in_a_hurry) is Cause.NONE


def test_a_batch_grows_only_as_far_as_its_members_have_time() -> None:
    settings = Settings(max_rows=8)
    known = learn(learn(State(), 1, 0.1, settings), 4, 0.4, settings)
    waiting = [request(deadline=0.4), *[request()] * 7]
    decision, _ = decide(Snapshot(waiting, granted=True), known, settings, 0.0)
    assert (decision.members, decision.cause) == ((0,), Cause.DEADLINE)
    # One that is late anyway is no reason to keep others out.
    waiting = [request(deadline=0.2), *[request()] * 7]
    assert len(decide(Snapshot(waiting, granted=True), known, settings, 0.0)[0].members) == 8


def test_the_profile_is_careful_with_what_it_has_not_seen() -> None:
    state = State()
    assert predict(state, 1) is None
    assert batching.typical(state, 1) is None
    settings = Settings()
    for _ in range(200):
        state = learn(state, 4, 0.2, settings)
    assert batching.typical(state, 4) == pytest.approx(0.2)
    assert predict(state, 4) == pytest.approx(0.2, rel=0.01)
    # Larger ones are thought to cost as much a row, smaller ones as much as what is known.
    assert predict(state, 16) == pytest.approx(0.8, rel=0.01)
    assert predict(state, 1) == pytest.approx(0.2, rel=0.01)
    for seconds in [0.1, 0.3] * 100:
        state = learn(state, 4, seconds, settings)
    assert predict(state, 4) == pytest.approx(0.2 + 4 * 0.1, rel=0.2)


@given(PROFILES, st.integers(1, 200))
def test_more_is_known_never_means_none(executions: list[tuple[int, float]], rows: int) -> None:
    state = state_after(executions)
    predicted, mean = predict(state, rows), batching.typical(state, rows)
    assert (predicted is None) == (mean is None) == (not executions)
    if predicted is not None and mean is not None:
        assert predicted >= mean > 0

"""Required request counts: groups and order as the definition reads, alpha by its algorithm."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import queueing
from rouse_policy.queueing import Action, Head, Order, Snapshot
from rouse_policy.rrc import Alpha, Record, Settings, after, boundary, configure, rank, required
from rouse_policy.standings import Standings

PERCENTILES = st.sampled_from([0.5, 0.9, 0.95, 0.98, 0.99])
RECORDS = st.integers(0, 400).flatmap(lambda n: st.builds(Record, st.just(n), st.integers(0, n)))
ALPHAS = st.sampled_from([1.0, 0.5, 0.25, 0.125, 1 / 64])


def exactly(record: Record, percentile: float) -> Fraction:
    p = Fraction(str(percentile))
    return (p * record.answered - record.in_time) / (1 - p)


def by_definition(records: dict[str, Record], percentile: float, alpha: float) -> list[str]:
    """The paper's order, read word by word (A.3)."""
    counts = {name: exactly(record, percentile) for name, record in records.items()}
    ascending = sorted(counts, key=lambda name: (counts[name], name))
    limit = Fraction(alpha) * sum(max(c, Fraction(0)) for c in counts.values())
    k = max(
        k
        for k in range(len(ascending) + 1)
        if sum((max(counts[name], Fraction(0)) for name in ascending[:k]), Fraction(0)) <= limit
    )
    high, low = ascending[:k], ascending[k:]
    return sorted(high, key=lambda name: (-counts[name], name)) + sorted(low, key=lambda name: (counts[name], name))


def ordered(records: dict[str, Record], percentile: float, alpha: float) -> list[str]:
    """The order in which the queueing policy takes one waiting request of each function."""
    counts = {name: required(record, percentile) for name, record in records.items()}
    behind = sorted((count, name) for name, count in counts.items() if count > 0)
    settings = queueing.Settings(order=Order.RRC, objective=Settings(percentile=percentile), patience_s=1e9)
    state = queueing.State(alpha=Alpha(alpha, until=1e9))
    waiting, order = set(records), []
    while waiting:
        heads = [Head(name, 1.0, 0.0, required=counts[name]) for name in sorted(waiting)]
        decision, state = queueing.decide(Snapshot(heads, 0, behind, len(records)), state, settings, 0.0)
        order.append(decision.version_id)
        waiting.remove(decision.version_id)
    return order


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), RECORDS, max_size=12), PERCENTILES, ALPHAS)
def test_the_order_is_that_of_the_definition(records: dict[str, Record], percentile: float, alpha: float) -> None:
    assert ordered(records, percentile, alpha) == by_definition(records, percentile, alpha)


@given(RECORDS, PERCENTILES)
def test_so_many_answers_in_time_restore_the_objective(record: Record, percentile: float) -> None:
    count = required(record, percentile)
    needed = max(0, -int(-count // 1))
    restored = Record(record.answered + needed, record.in_time + needed)
    assert required(restored, percentile) <= 1e-6
    assert (count <= 0) == (exactly(record, percentile) <= 0)


def test_everybody_is_in_the_high_group_where_nobody_misses() -> None:
    last = boundary([], 1 / 64)
    assert rank(-3.0, "a", last) < rank(-5.0, "b", last)
    assert not rank(0.0, "c", last)[0]


def test_nobody_who_misses_is_in_it_where_alpha_lets_none_in() -> None:
    last = boundary([(4.0, "a"), (9.0, "b")], 1 / 64)
    assert not rank(0.0, "c", last)[0]
    assert rank(4.0, "a", last)[0]
    assert rank(4.0, "a", last) < rank(9.0, "b", last)


@given(st.lists(st.floats(0, 1), max_size=40))
def test_alpha_stays_within_its_bounds(ratios: list[float]) -> None:
    settings, alpha, now = Settings(), Alpha(1.0), 0.0
    for ratio in ratios:
        before, now = alpha, now + 11.0
        alpha = configure(alpha, ratio, settings, now)
        assert settings.min_alpha <= alpha.value <= 1
        if before.ratio is not None:
            moved = ratio - before.ratio
            assert (alpha.value > before.value) == (moved > 0.04 and before.value < 1)
            assert (alpha.value < before.value) == (moved < -0.04 and before.value > settings.min_alpha)


def test_alpha_is_looked_at_once_a_period() -> None:
    settings = Settings(period_s=10)
    alpha = configure(Alpha(1.0, 0.9, 100.0), 0.1, settings, 99.9)
    assert alpha.value == 1.0
    assert configure(alpha, 0.1, settings, 100.0) == Alpha(0.5, 0.1, 110.0)


@given(st.lists(st.booleans(), max_size=300))
def test_old_answers_fade_and_counts_stay_bounded(answers: list[bool]) -> None:
    settings, record = Settings(memory=50), Record()
    for in_time in answers:
        record = after(record, in_time, settings)
        assert 0 <= record.in_time <= record.answered < 50


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["met", "missed", "forgotten"])), max_size=120))
def test_standings_are_those_of_the_records(events: list[tuple[str, str]]) -> None:
    settings = Settings(percentile=0.9, memory=20)
    standings, records = Standings(settings), dict[str, Record]()
    for name, event in events:
        if event == "forgotten":
            standings.forget(name)
            records.pop(name, None)
        else:
            standings.answered(name, event == "met")
            records[name] = after(records.get(name, Record()), event == "met", settings)
        counts = {known: required(record, 0.9) for known, record in records.items()}
        assert list(standings.behind) == sorted((count, known) for known, count in counts.items() if count > 0)
        assert standings.required(name) == counts.get(name, 0.0)
        assert len(standings) == len(records)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 9), st.floats(-50, 500)), min_size=1, max_size=60),
    st.integers(1, 8),
)
def test_nobody_starves_whatever_arrives(coming: list[tuple[float, int, float]], fair_every: int) -> None:
    """Newcomers that the order prefers arrive for ever: whoever waited out its patience goes within the bound."""
    settings = queueing.Settings(order=Order.RRC, patience_s=5.0, fair_every=fair_every)
    state, now = queueing.State(), 100.0
    behind = sorted([(1e6, "last")] + [(r, f"f{i}") for i, (_, _, r) in enumerate(coming) if r > 0])
    heads = {f"f{i}": Head(f"f{i}", 0.0, now - age, required=r) for i, (age, _, r) in enumerate(coming)}
    victim = Head("last", 0.0, now - 50.0, required=1e6)
    older = sum(head.arrived < victim.arrived for head in heads.values())
    for step in range(fair_every * (older + 1) + 1):
        snapshot = Snapshot([*heads.values(), victim], 0, behind, len(heads) + 1)
        decision, state = queueing.decide(snapshot, state, settings, now)
        if decision.version_id == "last":
            return
        assert decision.action is Action.START
        now += 0.01
        # The one that went is followed by another of the same kind at once.
        gone = heads[decision.version_id]
        heads[decision.version_id] = Head(gone.version_id, 0.0, now, required=gone.required)
        assert step < fair_every * (older + 1)
    raise AssertionError("it never went")


def test_late_requests_yield_where_that_is_set() -> None:
    heads = [Head("late", 1.0, 0.0, required=3.0), Head("on-time", 9.0, 0.5, required=-1.0)]
    snapshot = Snapshot(heads, 0, [(3.0, "late")], 2)
    paper = queueing.Settings(order=Order.RRC)
    ours = queueing.Settings(order=Order.RRC, late_last=True)
    assert queueing.decide(snapshot, queueing.State(), paper, 2.0)[0].version_id == "late"
    assert queueing.decide(snapshot, queueing.State(), ours, 2.0)[0].version_id == "on-time"

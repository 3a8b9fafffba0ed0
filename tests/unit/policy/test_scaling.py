"""Model-level scaling: within bounds, monotone, without flapping, patient with what fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.scaling import Decision, InstanceView, Settings, Snapshot, State, decide, needed

SETTINGS = Settings()
NOW = 1_000_000.0
RATES = st.floats(0, 500)
SERVED = st.floats(0.01, 1000)


def instance(number: int, state: str = "READY", version: str = "v1", since: float = NOW - 1000) -> InstanceView:
    return InstanceView(f"i{number}", version, state, since)


def snapshot(ready: int = 0, **changes: object) -> Snapshot:
    base = Snapshot(
        function="f",
        version_id="v1",
        failed=False,
        min_instances=0,
        max_instances=100,
        idle_timeout_s=300,
        arrival_rate=0.0,
        instance_rate=0.0,
        last_arrival=NOW - 1,
        instances=tuple(instance(number) for number in range(ready)),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def once(seen: Snapshot, state: State | None = None, now: float = NOW) -> Decision:
    return decide(seen, state or State(), SETTINGS, now)[0]


def test_what_tapes_answer_is_left_asleep_until_it_is_woken() -> None:
    asleep = snapshot(arrival_rate=5.0, instance_rate=1.0, tapes=3)
    decision = once(asleep)
    assert (decision.desired, decision.start) == (0, 0)
    assert "asleep: 3 tapes answer without a process" in decision.reason
    assert once(replace(asleep, tapes=0)).desired > 0
    # An instance that was woken is scaled as ever, and goes when the function is idle.
    woken = replace(asleep, instances=(instance(1, since=NOW - 1),))
    assert once(woken).desired > 1
    idle = replace(woken, arrival_rate=0.0, last_arrival=NOW - 301, instances=(instance(1),))
    assert once(idle).stop == ("i1",)
    assert once(replace(asleep, min_instances=1)).start == 1


@given(RATES, SERVED, st.integers(1, 50))
def test_needed_keeps_the_number_between_both_thresholds(rate: float, served: float, current: int) -> None:
    count = needed(rate, served, current, SETTINGS)
    if count > current:
        assert rate > SETTINGS.alpha * current * served
        assert rate <= SETTINGS.alpha * count * served * (1 + 1e-9)
    elif count < current:
        assert rate < SETTINGS.beta * current * served
        # What is left carries the load well below the threshold for more.
        assert rate <= SETTINGS.beta * count * served * (1 + 1e-9)


@given(RATES, RATES, SERVED, st.integers(1, 50))
def test_needed_is_monotone_in_the_rate(one: float, other: float, served: float, current: int) -> None:
    low, high = sorted((one, other))
    assert needed(low, served, current, SETTINGS) <= needed(high, served, current, SETTINGS)


@given(RATES, SERVED, st.integers(1, 50))
def test_needed_settles_after_one_step(rate: float, served: float, current: int) -> None:
    count = needed(rate, served, current, SETTINGS)
    assert needed(rate, served, count, SETTINGS) == count


STATES = st.sampled_from(["PENDING", "STARTING", "READY", "STOPPING"])
SNAPSHOTS = st.builds(
    lambda states, low, more, **rest: snapshot(
        min_instances=low,
        max_instances=low + more,
        instances=tuple(
            instance(number, state, version, NOW - age) for number, (state, version, age) in enumerate(states)
        ),
        **rest,
    ),
    states=st.lists(st.tuples(STATES, st.sampled_from(["v0", "v1"]), st.floats(0, 1000)), max_size=8),
    low=st.integers(0, 3),
    more=st.integers(0, 5),
    failed=st.booleans(),
    arrival_rate=st.none() | RATES,
    instance_rate=st.just(0.0) | SERVED,
    last_arrival=st.none() | st.floats(NOW - 1000, NOW),
    busy=st.booleans(),
)
POLICY_STATES = st.builds(
    State,
    last_active=st.none() | st.floats(NOW - 1000, NOW),
    instance_rate=st.just(0.0) | SERVED,
    low_since=st.none() | st.floats(NOW - 100, NOW),
    failures=st.integers(0, 2000),
    retry_at=st.floats(NOW - 10, NOW + 10),
    failed=st.booleans(),
    seen=st.frozensets(st.sampled_from([f"i{number}" for number in range(10)])),
)


@given(SNAPSHOTS, POLICY_STATES)
def test_limits_hold_and_what_is_done_leads_to_what_is_desired(seen: Snapshot, state: State) -> None:
    decision, following = decide(seen, state, SETTINGS, NOW)
    active = [x for x in seen.instances if x.version_id == "v1"]
    counted = {x.instance_id for x in active if x.state in ("PENDING", "STARTING", "READY")}
    current = len(counted)
    assert decision.reason
    assert decision.desired >= min(seen.min_instances, seen.max_instances)
    # More than the limit is there only while it settles that fewer are needed.
    assert decision.desired <= max(seen.max_instances, current)
    stopped = counted & set(decision.stop)
    assert len(decision.stop) == len(set(decision.stop))
    assert not (decision.start and stopped)
    assert current - len(stopped) + decision.start in (decision.desired, min(current, decision.desired))
    assert following.retry_at <= NOW + SETTINGS.max_backoff_s or following.retry_at == state.retry_at
    states = {x.instance_id: x.state for x in seen.instances}
    assert all(states[name] != "STOPPING" for name in decision.stop)
    assert all(states[name] == "PENDING" and name not in decision.stop for name in decision.resume)
    assert all(states[name] == "STOPPING" for name in decision.finish)


@given(SNAPSHOTS, POLICY_STATES, RATES, RATES)
def test_more_arrivals_never_mean_fewer_instances(seen: Snapshot, state: State, one: float, other: float) -> None:
    low, high = sorted((one, other))
    fewer = once(replace(seen, arrival_rate=low), state).desired
    assert fewer <= once(replace(seen, arrival_rate=high), state).desired


@given(st.floats(0.1, 100), SERVED, st.integers(0, 10))
def test_a_constant_rate_does_not_flap(rate: float, served: float, start: int) -> None:
    state, count, changes, directions = State(), start, 0, set()
    for tick in range(60):
        now = NOW + tick
        seen = snapshot(
            arrival_rate=rate,
            instance_rate=served,
            last_arrival=now,
            instances=tuple(instance(number) for number in range(count)),
        )
        decision, state = decide(seen, state, SETTINGS, now)
        if decision.start or decision.stop:
            changes += 1
            directions.add("out" if decision.start else "in")
        count += decision.start - len(decision.stop)
    assert changes <= 1 + (start == 0)
    assert len(directions) <= 1


def test_scaling_out_says_the_numbers() -> None:
    decision = once(snapshot(2, arrival_rate=40.0, instance_rate=10.0))
    assert (decision.desired, decision.start) == (5, 3)
    assert decision.reason == "40 arrivals/s are 200% of what 2 x 10/s serve, bounds 60% and 80%; limits 0 to 100"


def test_scaling_in_settles_first_and_stops_the_newest() -> None:
    instances = tuple(instance(number, since=NOW - 1000 + number) for number in range(4))
    seen = snapshot(arrival_rate=10.0, instance_rate=10.0, instances=instances)
    decision, state = decide(seen, State(), SETTINGS, NOW)
    assert (decision.desired, decision.stop) == (4, ())
    assert "2 would do, for 0 of 10 s" in decision.reason
    decision, state = decide(replace(seen, arrival_rate=30.0), state, SETTINGS, NOW + 5)
    assert state.low_since is None
    for wait in (6.0, 15.0):
        assert decide(seen, state, SETTINGS, NOW + wait)[0].stop == ()
        decision, state = decide(seen, state, SETTINGS, NOW + wait)
    decision, state = decide(seen, state, SETTINGS, NOW + 16)
    assert (decision.desired, set(decision.stop)) == (2, {"i3", "i2"})


def test_an_instance_that_is_not_ready_is_stopped_before_one_that_is() -> None:
    instances = (instance(0, since=NOW), instance(1, "STARTING", since=NOW - 9))
    seen = snapshot(arrival_rate=1.0, instance_rate=10.0, max_instances=1, instances=instances)
    assert once(seen, State(low_since=NOW - 100)).stop == ("i1",)


def test_idle_functions_go_to_their_least_number_at_once() -> None:
    for low in (0, 1):
        seen = snapshot(3, min_instances=low, last_arrival=NOW - 300)
        decision = once(seen)
        assert (decision.desired, len(decision.stop)) == (low, 3 - low)
        assert decision.reason == f"idle for 300 s, timeout 300 s; limits {low} to 100"
        assert once(replace(seen, last_arrival=NOW - 299)).stop == ()


def test_a_timeout_shorter_than_the_window_counts_all_the_same() -> None:
    seen = snapshot(1, arrival_rate=0.1, idle_timeout_s=1, last_arrival=NOW - 1)
    assert once(seen).stop == ("i0",)
    # And what was stopped is not started again for arrivals that were served.
    assert once(replace(seen, instances=())).start == 0


@pytest.mark.parametrize(
    "sign", [{"busy": True}, {"last_arrival": NOW - 10}, {"last_arrival": None, "arrival_rate": 0.1}]
)
def test_signs_of_life_keep_a_function_awake(sign: dict[str, object]) -> None:
    idle = snapshot(1, last_arrival=NOW - 1000)
    assert once(idle).stop == ("i0",)
    assert once(replace(idle, **sign)).stop == ()  # type: ignore[arg-type]


def test_a_fresh_instance_waits_for_its_first_request() -> None:
    seen = snapshot(last_arrival=None, instances=(instance(0, since=NOW - 100),))
    assert once(seen).stop == ()
    assert once(replace(seen, instances=(instance(0, since=NOW - 300),))).stop == ("i0",)


def test_arrivals_without_an_instance_start_one() -> None:
    assert once(snapshot(arrival_rate=0.1)).start == 1
    assert once(snapshot()).start == 0


def test_without_knowing_arrivals_nothing_is_stopped() -> None:
    decision = once(snapshot(3, arrival_rate=None, last_arrival=None, min_instances=1))
    assert (decision.desired, decision.stop, decision.start) == (3, (), 0)
    assert once(snapshot(0, arrival_rate=None, min_instances=2)).start == 2


def test_a_function_that_fails_is_restarted_ever_more_rarely() -> None:
    failing, state = snapshot(min_instances=1, failed=True), State()
    starts, now = [], NOW
    for _ in range(3000):
        decision, state = decide(failing, state, SETTINGS, now)
        if decision.start:
            starts.append(now)
            # It fails again before the next look.
            state = replace(state, seen=frozenset({f"i{len(starts)}"}))
        now += 0.1
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert starts[0] == pytest.approx(NOW + 1, abs=0.2)
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 60, 60, 60], abs=0.5)


def test_an_instance_that_dies_counts_as_a_failure_and_one_that_lasts_forgives() -> None:
    state = State(seen=frozenset({"i0"}), failures=3)
    decision, state = decide(snapshot(min_instances=1), state, SETTINGS, NOW)
    assert (decision.start, state.failures, state.retry_at) == (0, 4, NOW + 8)
    assert "4 failures in a row, next start in 8 s" in decision.reason
    recovered = snapshot(min_instances=1, instances=(instance(0, since=NOW),))
    _, state = decide(recovered, state, SETTINGS, NOW + SETTINGS.stable_s - 1)
    assert state.failures == 4
    _, state = decide(recovered, state, SETTINGS, NOW + SETTINGS.stable_s)
    assert state.failures == 0


def test_an_instance_that_was_stopped_is_no_failure() -> None:
    decision, state = decide(snapshot(1, last_arrival=NOW - 1000), State(), SETTINGS, NOW)
    assert decision.stop == ("i0",)
    _, state = decide(snapshot(0, last_arrival=NOW - 1000), state, SETTINGS, NOW + 1)
    assert state.failures == 0


def test_an_older_version_is_retired_once_the_active_one_serves() -> None:
    old = instance(0, version="v0", since=NOW - 31)
    assert once(snapshot(instances=(old,), last_arrival=NOW)).stop == ()
    assert once(snapshot(instances=(old, instance(1, "STARTING")))).stop == ()
    assert once(snapshot(instances=(old, instance(1)))).stop == ("i0",)
    assert once(snapshot(instances=(replace(old, since=NOW - 29), instance(1)))).stop == ()
    assert once(snapshot(instances=(replace(old, since=NOW - 300),), last_arrival=NOW - 300)).stop == ("i0",)


def test_a_version_that_is_named_stays_as_long_as_a_function_may_be_idle() -> None:
    old = instance(7, version="v0")
    seen = snapshot(1, instances=(instance(1), old))
    assert once(seen).stop == ("i7",)
    assert once(replace(seen, named={"v0": NOW - 299})).stop == ()
    assert once(replace(seen, named={"v0": NOW - 301})).stop == ("i7",)


def test_what_was_put_to_sleep_sleeps_until_it_is_called() -> None:
    loaded = snapshot(2, arrival_rate=50.0, instance_rate=10.0, busy=True, slept_at=NOW - 1, last_arrival=NOW - 1)
    assert (once(loaded).desired, len(once(loaded).stop), once(loaded).start) == (0, 2, 0)
    assert "put to sleep" in once(loaded).reason
    assert once(replace(loaded, min_instances=1)).desired == 1
    assert once(replace(loaded, last_arrival=NOW)).desired > 0
    assert once(replace(loaded, last_arrival=None)).desired == 0


def test_forgotten_instances_are_taken_up_again() -> None:
    seen = snapshot(
        arrival_rate=1.0,
        instances=(
            instance(0, "PENDING", since=NOW - 3),
            instance(1, "PENDING", since=NOW - 2),
            instance(2, "STOPPING", since=NOW - 30),
            instance(3, "STOPPING", since=NOW - 29),
        ),
    )
    decision = once(seen)
    assert (decision.resume, decision.finish) == (("i0",), ("i2",))

"""Where a model's addresses lie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy.addresses import BASE, END, GRANULE_BYTES, Decision, Extent, Settings, Snapshot, State, decide

G = GRANULE_BYTES
# Room for 20 granules; a newcomer takes its weights and one granule each for state and scratch.
SMALL = Settings(base=16 * G, end=36 * G, least_bytes=1, most_bytes=G)


def decided(weights: int, *taken: Extent, settings: Settings = SMALL) -> Decision:
    return decide(Snapshot(taken, weights), State(), settings, 0.0)[0]


def test_the_first_range_begins_at_the_base_with_whole_regions() -> None:
    decision = decided(100, settings=Settings())
    assert decision.base == BASE
    assert (decision.regions.weights_bytes, decision.regions.state_bytes) == (G, 512 << 20)
    assert decision.regions.scratch_bytes == 512 << 20


def test_regions_grow_with_the_weights_up_to_a_bound() -> None:
    assert decided(3 << 30, settings=Settings()).regions.scratch_bytes == 6 << 30
    assert decided(140 << 30, settings=Settings()).regions.state_bytes == 64 << 30


def test_ranges_end_below_the_addresses_of_programs() -> None:
    assert END <= 0x5555_5555_4000


def test_a_newcomer_comes_after_all_others_and_leaves_gaps_alone() -> None:
    assert decided(1, Extent(30 * G, 2 * G)).base == 32 * G


def test_without_room_at_the_end_the_smallest_gap_that_fits_is_taken() -> None:
    taken = (Extent(20 * G, 2 * G), Extent(25 * G, 3 * G), Extent(30 * G, 6 * G))
    assert decided(1, *taken).base == 22 * G
    assert decided(2 * G, *taken).base == 16 * G


def test_without_any_room_there_is_no_base_and_the_reason_has_the_numbers() -> None:
    decision = decided(1, Extent(16 * G, 19 * G))
    assert decision.base is None
    assert f"needs {3 * G} B" in decision.reason
    assert f"has {G} B" in decision.reason


@given(st.lists(st.tuples(st.integers(0, 6 * G), st.booleans()), max_size=30))
def test_no_two_overlap_and_room_is_found_where_there_is_some(steps: list[tuple[int, bool]]) -> None:
    """Any history of models that come and, every other one, the oldest goes."""
    taken: list[Extent] = []
    for weights, goes in steps:
        if goes and taken:
            taken.pop(0)
        decision = decided(weights, *taken)
        need = decision.regions.size_bytes
        free = [
            base for base in range(SMALL.base, SMALL.end - need + 1, G)
            if all(base + need <= other.base or other.end <= base for other in taken)
        ]  # fmt: skip
        assert (decision.base is not None) == bool(free)
        if decision.base is not None:
            assert decision.base in free
            assert decision.regions.weights_bytes >= weights
            taken.append(Extent(decision.base, need))

"""Memory that always adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_gpu_server.state.ledger import PAGE_BYTES, Ledger, LedgerError, round_up

CAPACITY = 10 * PAGE_BYTES


def test_sizes_become_whole_pages() -> None:
    assert [round_up(n) for n in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [0, PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES]


def test_a_model_comes_and_goes() -> None:
    ledger = Ledger("d0", CAPACITY)
    ledger.reserve(4 * PAGE_BYTES)
    assert (ledger.mapped_bytes, ledger.reserved_bytes, ledger.free_bytes) == (0, 4 * PAGE_BYTES, 6 * PAGE_BYTES)
    ledger.map_reserved(4 * PAGE_BYTES)
    assert (ledger.mapped_bytes, ledger.reserved_bytes) == (4 * PAGE_BYTES, 0)
    ledger.unmap(4 * PAGE_BYTES)
    assert ledger.free_bytes == CAPACITY


@pytest.mark.parametrize(
    ("method", "size"),
    [("reserve", CAPACITY + PAGE_BYTES), ("release", PAGE_BYTES), ("unmap", PAGE_BYTES), ("map_reserved", PAGE_BYTES),
     ("reserve", 5), ("reserve", -PAGE_BYTES)],
)  # fmt: skip
def test_what_does_not_add_up_raises_and_changes_nothing(method: str, size: int) -> None:
    ledger = Ledger("d0", CAPACITY)
    with pytest.raises(LedgerError, match="d0"):
        getattr(ledger, method)(size)
    assert ledger == Ledger("d0", CAPACITY)


@given(st.lists(st.tuples(st.sampled_from(["reserve", "release", "map_reserved", "unmap"]), st.integers(0, 12))))
def test_it_adds_up_after_any_sequence(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger("d0", CAPACITY)
    for method, pages in steps:
        try:
            getattr(ledger, method)(pages * PAGE_BYTES)
        except LedgerError:
            continue
        assert ledger.mapped_bytes >= 0
        assert ledger.reserved_bytes >= 0
        assert ledger.free_bytes >= 0
        assert ledger.mapped_bytes + ledger.reserved_bytes + ledger.free_bytes == CAPACITY

"""What the scaler remembers is bounded by the functions that there are."""

from __future__ import annotations

from rouse_policy import scaling
from rouse_scaler.state import Registry


async def test_entries_of_deleted_functions_go_unless_something_is_under_way() -> None:
    registry = Registry()
    acting, locked, gone, there = (registry.entry(name) for name in ("acting", "locked", "gone", "there"))
    acting.acting = True
    async with locked.lock:
        registry.keep({("there", "")})
        assert registry.entries() == [acting, locked, there]
    acting.acting = False
    registry.keep({("there", "")})
    assert registry.entries() == [there]
    assert registry.entry("gone") is not gone


def test_versions_of_a_function_have_entries_of_their_own_and_one_lock() -> None:
    registry = Registry()
    active, other = registry.entry("f"), registry.entry("f", "v2")
    assert other is not active
    assert other.lock is active.lock
    assert registry.of_function("f") == [active, other]
    registry.keep({("f", "")})
    assert registry.entries() == [active]


def test_a_start_is_remembered_so_that_its_end_is_noticed() -> None:
    entry = Registry().entry("f")
    entry.started("i1", 5.0)
    assert entry.changed_at == 5.0
    seen = scaling.Snapshot("f", "v1", True, 1, 1, 300, 0.0, 0.0, None)
    decision, state = scaling.decide(seen, entry.state, scaling.Settings(), 1000.0)
    assert decision.start == 0
    assert (state.failures, state.retry_at) == (1, 1001.0)


def test_only_instances_of_the_active_version_that_serve_or_will_are_counted() -> None:
    entry = Registry().entry("f")
    assert entry.counted == 0
    views = [("v1", "READY"), ("v1", "PENDING"), ("v1", "STOPPING"), ("v0", "READY")]
    entry.seen = scaling.Snapshot(
        "f", "v1", False, 0, 3, 300, 0.0, 0.0, None,
        instances=tuple(scaling.InstanceView(f"i{n}", version, state, 0.0) for n, (version, state) in enumerate(views)),
    )  # fmt: skip
    assert entry.counted == 2

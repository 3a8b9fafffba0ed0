"""Where a load goes and comes from: Algorithm 1 as gpu-server's decision makes use of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rouse_policy import interference
from rouse_policy.interference import Mode
from rouse_policy.scheduling import DISK, HOST, Load, Model, Phase, Resident, Settings, Snapshot, State, decide
from rouse_policy.topology import Topology
from rouse_testkit.pools import NOW, device, resting, snapshot, waiter

DEVICES = ("d0", "d1", "d2", "d3")
QUAD = Topology(
    (("d0", "d1"), ("d2", "d3")),
    {("d0", "d1"): 24e9, ("d0", "d2"): 24e9, ("d0", "d3"): 48e9, ("d1", "d2"): 48e9, ("d2", "d3"): 48e9},
)
LINKED = Settings(interference=interference.Settings(topology=QUAD))


def load(view: Snapshot, settings: Settings = LINKED) -> Load:
    decision, _ = decide(view, State(), settings, NOW)
    (found,) = decision.loads
    return found


def loading(version: str, on: str, source: str = HOST) -> Resident:
    return Resident(version, on, Phase.LOADING, source=source)


def test_a_load_goes_to_the_device_whose_switch_is_quiet() -> None:
    four = [device("d0", 80), device("d1"), device("d2"), device("d3")]
    view = snapshot(four, [waiter(1)], [loading("b", "d0")])
    assert (load(view).device, load(view).source) == ("d2", HOST)
    assert load(view).reason == "for request 1: d2 from the host: no neighbour loads (idle); fits without evicting"
    # A copy that comes over a direct link takes nothing of the switch.
    beside = replace(view, devices=(device("d0", 80), device("d1"), device("d2", busy=True), device("d3", busy=True)))
    assert "every neighbour loads" not in load(replace(beside, residents=(loading("b", "d0", "d3"),))).reason


def test_beside_a_light_model_rather_than_a_heavy_one() -> None:
    view = snapshot(
        [device(name) for name in DEVICES],
        [waiter(1)],
        [loading("heavy", "d0"), loading("light", "d2")],
        heavy=Model("heavy", 80, 0, heavy_on=("d0",)),
        light=Model("light", 80, 0, heavy_on=("d0",)),
    )
    assert load(view).device == "d3"
    assert "its neighbour loads a light model" in load(view).reason


def test_a_quiet_switch_is_worth_more_than_not_evicting_and_costs_are_the_tie_break() -> None:
    view = snapshot(
        [device("d0"), device("d1"), device("d2", 70)], [waiter(1)], [loading("b", "d0"), resting("c", "d2")]
    )
    found = load(replace(view, devices=(device("d0", 70), device("d1"), device("d2", 70))))
    assert (found.device, [v.version for v in found.victims]) == ("d2", ["c"])
    # Without a topology nothing is disturbed, and nothing has to leave d1.
    assert load(replace(view, devices=(device("d0", 70), device("d1"), device("d2", 70))), Settings()).device == "d1"


def test_a_model_comes_from_a_busy_holder_over_the_fastest_direct_link() -> None:
    def view(*busy: str, source: str = HOST) -> Snapshot:
        every = [device(name, busy=name in busy) for name in DEVICES]
        there = [Resident("a", "d0", Phase.EXECUTING)]
        return snapshot(every, [waiter(1)], there, a=Model("a", 40, 0, source))

    assert (load(view("d0")).device, load(view("d0")).source) == ("d3", "d0")
    assert "from busy d0 at 48 GB/s" in load(view("d0")).reason
    assert (load(view("d0", "d3")).device, load(view("d0", "d3")).source) == ("d1", "d0")
    # Without a link host memory is as good; what is not in it comes from the holder all the same.
    assert load(view("d0"), Settings()).source == HOST
    assert load(view("d0", source=DISK), Settings()).source == "d0"


def test_a_copy_that_is_read_does_not_leave() -> None:
    there = [resting("a", "d0"), loading("a", "d1", "d0")]
    view = snapshot([device("d0", 60), device("d1", 60)], [waiter(1, "b")], there)
    assert decide(view, State(), LINKED, NOW)[0].loads == ()
    read_no_more = replace(view, residents=(resting("a", "d0"), resting("a", "d1")))
    assert load(read_no_more).victims[0].version == "a"


def test_by_chance_every_device_is_chosen_and_a_seed_gives_the_same_again() -> None:
    settings = Settings(interference=interference.Settings(Mode.RANDOM, QUAD))
    view = snapshot([device(name) for name in DEVICES], [waiter(1)])

    def play(seed: int) -> list[str]:
        state, found = State(chance=interference.State(seed)), []
        for _ in range(400):
            decision, state = decide(view, state, settings, NOW)
            found += [f"{each.device} {each.source}" for each in decision.loads]
        return found

    assert play(1) == play(1) != play(2)
    counts = Counter(play(1))
    assert set(counts) == {f"{name} host" for name in DEVICES}
    assert min(counts.values()) > 60


@given(
    st.sets(st.sampled_from(DEVICES)),
    st.dictionaries(st.sampled_from(DEVICES), st.booleans()),
    st.sets(st.sampled_from(DEVICES)),
)
def test_it_is_algorithm_1_read_line_by_line(holders: set[str], others: dict[str, bool], busy: set[str]) -> None:
    # Whoever holds the model computes; everything fits everywhere, and copies in flight do not keep others away.
    busy |= holders
    residents = [Resident("a", name, Phase.EXECUTING) for name in sorted(holders)]
    residents += [loading(f"{name} loads", name) for name in others]
    models = {
        f"{name} loads": Model(f"{name} loads", 5, 0, heavy_on=(name,) if heavy else ())
        for name, heavy in others.items()
    }
    view = snapshot([device(name, busy=name in busy) for name in DEVICES], [waiter(1)], residents, None, **models)
    settings = replace(LINKED, loads_per_device=2)
    loads = decide(view, State(), settings, NOW)[0].loads
    # Where it has no preference, who rests before who loads.
    idle = sorted((name for name in DEVICES if name not in busy), key=lambda name: (name in others, name))
    if not idle:
        # Beyond the paper: a load overlaps what computes, where the model is nowhere.
        assert len(loads) == (not holders)
        return
    (found,) = loads
    fastest = max((QUAD.bandwidth(d, h) for d in idle for h in holders), default=0.0)
    if fastest:
        assert QUAD.bandwidth(found.device, found.source) == fastest
        return
    quiet = [d for d in idle if not any(n in others for n in QUAD.neighbours(d))]
    light = [d for d in idle if not any(others.get(n) for n in QUAD.neighbours(d))]
    assert found.source == HOST
    assert found.device == (quiet or light or idle)[0]

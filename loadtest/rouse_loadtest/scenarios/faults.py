"""Everything that can die is killed under open-loop load, and what was accepted ends once, answered or typed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rouse_loadtest import mesh as meshes
from rouse_loadtest import plot, victims
from rouse_loadtest.open_loop import OK, End, Load, outcomes
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.victims import Victim
from rouse_loadtest.witnessed import Witness, doubled, witnessed, write_doubled, write_witnessed
from rouse_testkit.mesh import Mesh

KILLS, QUICK_KILLS = 20, 2
# Requests a second to each of the two functions.
RATE = 20.0
TIMEOUT_S = 20.0
# What later answers cost: requests that took longer missed their objective.
OBJECTIVE_S = 0.1
SEED = 20
# The mesh serves again when so many requests to each function in a row were answered.
CALM = 10
CALM_S = 60.0
# How long is looked at how many requests are late with nothing killed.
BEFORE_S = 5.0
CONNECTION_LOST = "UNAVAILABLE"
EXECUTORS = {"gpu-server": {"executors": "true"}, "cluster-manager": {"executors": "true"}}


@dataclass
class Struck:
    """What the kills of one victim did.

    Args:
        late: requests that failed or took longer than OBJECTIVE_S, from the kill until all was whole again.
    """

    victim: Victim
    recover_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    late: int = 0
    untyped: int = 0


@contextlib.contextmanager
def loading(loads: Sequence[Load]) -> Iterator[None]:
    """The loads, in a thread with an event loop of its own, until the block ends and all of it has ended."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    failed: list[BaseException] = []

    async def every() -> None:
        await asyncio.gather(*(load.run(stop) for load in loads))

    def work() -> None:
        try:
            loop.run_until_complete(every())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the thread
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT_S * 2)
        if thread.is_alive():
            raise AssertionError("requests are under way past their deadline")
        loop.close()
        if failed:
            raise failed[0]


def measure(run: Run) -> Sequence[Measure]:
    """Kills each process in turn, a number of times."""
    kills = QUICK_KILLS if run.quick else KILLS
    draw, witness = random.Random(SEED), Witness()
    mesh = Mesh(run.folder, nodes=2, devices=("host:gpu0=64MiB",), settings=EXECUTORS).start()
    try:
        client = mesh.client()
        for folder in (write_witnessed(run.folder / "w", witness), write_doubled(run.folder / "d")):
            client.deploy(folder, timeout=meshes.DEPLOY_S)
        loads = [
            Load(mesh.gateway_address, witnessed(), RATE, TIMEOUT_S, SEED),
            Load(mesh.gateway_address, doubled(), RATE, TIMEOUT_S, SEED + 1),
        ]
        mesh.wait_until(lambda: len(mesh.instance_pids("witnessed")) == 2, "two instances run")
        struck = [Struck(victim) for victim in victims.every(mesh, "witnessed")]
        with loading(loads):
            _calm(loads, time.monotonic())
            quiet = _quiet(loads)
            # In turn, not one after the other: what is killed again and again is started ever later.
            for turn in range(1, kills + 1):
                for each in struck:
                    _strike(mesh, loads, each, draw)
                print(f"  round {turn} of {kills}: {len(struck)} kills, all recovered", flush=True)
    finally:
        mesh.stop()
        witness.close()
    return _report(run, loads, witness, struck, quiet)


def _quiet(loads: Sequence[Load]) -> float:
    """The share of requests that are late with nothing killed."""
    began = time.monotonic()
    time.sleep(BEFORE_S)
    ended = _between(loads, began, time.monotonic())
    return sum(map(_late, ended)) / len(ended)


def _strike(mesh: Mesh, loads: Sequence[Load], struck: Struck, draw: random.Random) -> None:
    """One kill at a random moment, and the way back."""
    time.sleep(draw.uniform(0.1, 0.6))
    began = time.monotonic()
    struck.victim.kill()
    recovered = _calm(loads, began)
    struck.recover_s.append(recovered - began)
    victims.wait_whole(mesh, struck.victim)
    struck.whole_s.append(time.monotonic() - began)
    ended = _between(loads, began, time.monotonic())
    struck.ends += outcomes(ended)
    struck.late += sum(map(_late, ended))
    # Nobody can say anything for a gateway that was killed: its clients see the connection break.
    excused = {CONNECTION_LOST} if struck.victim.name == "gateway" else set()
    struck.untyped += sum(1 for e in ended if not e.typed and e.accepted and e.outcome not in excused)


def _late(end: End) -> bool:
    return end.outcome != OK or end.latency_s > OBJECTIVE_S


def _between(loads: Sequence[Load], start: float, end: float) -> list[End]:
    return [each for load in loads for each in load.between(start, end)]


def _calm(loads: Sequence[Load], since: float) -> float:
    """When the first of CALM answers in a row came, of the load where that was last. Raises AssertionError after
    CALM_S."""
    return max(_calm_of(load, since) for load in loads)


def _calm_of(load: Load, since: float) -> float:
    deadline = since + CALM_S
    while time.monotonic() < deadline:
        row = sorted(load.between(since, float("inf")), key=lambda e: e.at)
        good = 0
        for end in row:
            good = good + 1 if end.outcome == OK else 0
            if good == CALM:
                first: float = row[row.index(end) - CALM + 1].at
                return first
        time.sleep(0.05)
    raise AssertionError(
        f"the mesh does not serve {CALM_S:.0f} s after the kill: {outcomes(load.between(since, deadline))}"
    )


def _report(run: Run, loads: Sequence[Load], witness: Witness, struck: Sequence[Struck], quiet: float) -> list[Measure]:
    rows = []
    for s in struck:
        total = sum(s.ends.values())
        reasons = ", ".join(f"{reason} {count}" for reason, count in s.ends.most_common() if reason != OK) or "none"
        rows.append(
            [s.victim.name, str(len(s.recover_s)), figure(statistics.median(s.recover_s)), figure(max(s.recover_s)),
             figure(statistics.median(s.whole_s)), f"{total - s.ends[OK]} of {total}",
             figure(s.late / len(s.recover_s)), reasons]
        )  # fmt: skip
    head = [
        "killed", "times", "serves again, s", "slowest", "whole again, s", "requests failed",
        f"late or failed a kill (over {OBJECTIVE_S * 1000:.0f} ms)", "with",
    ]  # fmt: skip
    print(table(rows, head), end="\n\n")
    print(f"with nothing killed {quiet:.1%} of the requests are late\n")
    plot.bars(
        run.plots / "faults.svg", "After kill -9: time until requests are answered again, median", "s",
        [(s.victim.name, statistics.median(s.recover_s)) for s in struck],
    )  # fmt: skip
    plot.bars(
        run.plots / "faults-objective.svg", "After kill -9: requests that missed their objective, a kill", "requests",
        [(s.victim.name, s.late / len(s.recover_s)) for s in struck],
    )  # fmt: skip
    heard = loads[0]
    twice = sum(1 for count in witness.ran.values() if count > 1)
    unheard = sum(1 for number, end in heard.ends.items() if end.outcome == OK and not witness.ran[number])
    wrong = sum(1 for load in loads for end in load.ends.values() if end.outcome == "WRONG_ANSWER")
    kills = sum(len(s.recover_s) for s in struck)
    return [
        Measure("requests", [sum(load.begun for load in loads)], "", better="higher"),
        Measure("never_ended", [sum(load.begun - len(load.ends) for load in loads)], "requests", 0),
        Measure("ran_twice", [twice], "requests", 0),
        Measure("wrong_answers", [wrong], "requests", 0),
        Measure("answered_without_running", [unheard], "requests", 0),
        Measure("errors_without_reason", [sum(s.untyped for s in struck)], "requests", 0),
        Measure("recover_s", [r for s in struck for r in s.recover_s], "s", note="until requests are answered again"),
        Measure("objective_missed_a_kill", [sum(s.late for s in struck) / kills], "requests", note="late or failed"),
        Measure("late_with_nothing_killed", [quiet], "share"),
    ]


SCENARIO = Scenario(
    "faults", "kill -9 of every service, store, instance, executor and node under load, 20 times each", 10, measure
)

"""Everything that can die is killed under open-loop load, and what was accepted ends once, answered or typed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rouse_loadtest import mesh as meshes
from rouse_loadtest import plot
from rouse_loadtest.open_loop import OK, Load, outcomes
from rouse_loadtest.report import Measure, figure, table
from rouse_loadtest.scenario import Run, Scenario
from rouse_testkit.mesh import Mesh

KILLS, QUICK_KILLS = 20, 2
RATE = 40.0
TIMEOUT_S = 20.0
SEED = 20
# The mesh serves again when so many requests in a row were answered.
CALM = 20
CALM_S = 60.0
CONNECTION_LOST = "UNAVAILABLE"
FUNCTION = """
import socket

class Function:
    def load(self, context):
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.to = ("127.0.0.1", int(context.options["port"]))

    def predict(self, inputs):
        # Told before the answer: what ran is known even where nobody hears of it.
        self.out.sendto(str(int(inputs["x"][0])).encode(), self.to)
        return {"y": inputs["x"]}
"""


@dataclass
class Victim:
    """What the kills of one process did."""

    name: str
    recover_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    untyped: int = 0


class Witness:
    """Hears from the function which requests ran, and how often each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.ran: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while data := self._socket.recv(64):
            self.ran[int(data)] += 1

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(5)
        self._socket.close()


@contextlib.contextmanager
def loading(load: Load) -> Iterator[None]:
    """The load, in a thread with an event loop of its own, until the block ends and all of it has ended."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            loop.run_until_complete(load.run(stop))
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
    mesh = Mesh(run.folder).start()
    try:
        folder = meshes.write_function(
            run.folder / "f",
            "witnessed",
            FUNCTION,
            ["x INT64 [-1]"],
            ["y INT64 [-1]"],
            f'[options]\nport = "{witness.port}"',
        )
        mesh.client().deploy(folder, timeout=meshes.DEPLOY_S)
        load = Load(mesh.gateway_address, "witnessed", RATE, TIMEOUT_S, SEED)
        victims = [Victim(name) for name in mesh.services]
        with loading(load):
            _calm(load, time.monotonic())
            # In turn, not one after the other: what is killed again and again is started ever later.
            for turn in range(1, kills + 1):
                for victim in victims:
                    _strike(mesh, load, victim, draw)
                print(f"  round {turn} of {kills}: {len(victims)} processes killed, all recovered", flush=True)
    finally:
        mesh.stop()
        witness.close()
    return _report(run, load, witness, victims)


def _strike(mesh: Mesh, load: Load, victim: Victim, draw: random.Random) -> None:
    """One kill at a random moment, and the way back."""
    time.sleep(draw.uniform(0.1, 0.6))
    began = time.monotonic()
    mesh.kill(victim.name)
    recovered = _calm(load, began)
    victim.recover_s.append(recovered - began)
    mesh.wait_ready(CALM_S)
    victim.whole_s.append(time.monotonic() - began)
    ended = load.between(began, time.monotonic())
    victim.ends += outcomes(ended)
    # Nobody can say anything for a gateway that was killed: its clients see the connection break.
    excused = {CONNECTION_LOST} if victim.name == "gateway" else set()
    victim.untyped += sum(1 for e in ended if not e.typed and e.accepted and e.outcome not in excused)


def _calm(load: Load, since: float) -> float:
    """When the first of CALM answers in a row came. Raises AssertionError after CALM_S."""
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


def _report(run: Run, load: Load, witness: Witness, victims: Sequence[Victim]) -> list[Measure]:
    rows = []
    for v in victims:
        failed = sum(v.ends.values()) - v.ends[OK]
        reasons = ", ".join(f"{reason} {count}" for reason, count in v.ends.most_common() if reason != OK) or "none"
        rows.append(
            [v.name, str(len(v.recover_s)), figure(statistics.median(v.recover_s)), figure(max(v.recover_s)),
             figure(statistics.median(v.whole_s)), f"{failed} of {sum(v.ends.values())}", reasons]
        )  # fmt: skip
    head = ["killed", "times", "serves again, s", "slowest", "whole again, s", "requests failed", "with"]
    print(table(rows, head), end="\n\n")
    plot.bars(
        run.plots / "faults.svg", "After kill -9: time until requests are answered again, median", "s",
        [(v.name, statistics.median(v.recover_s)) for v in victims],
    )  # fmt: skip
    twice = sum(1 for count in witness.ran.values() if count > 1)
    unheard = sum(1 for number, end in load.ends.items() if end.outcome == OK and not witness.ran[number])
    return [
        Measure("requests", [load.begun], "", better="higher"),
        Measure("never_ended", [load.begun - len(load.ends)], "requests", 0),
        Measure("ran_twice", [twice], "requests", 0),
        Measure("answered_without_running", [unheard], "requests", 0),
        Measure("errors_without_reason", [sum(v.untyped for v in victims)], "requests", 0),
        Measure("recover_s", [r for v in victims for r in v.recover_s], "s", note="until requests are answered again"),
    ]


SCENARIO = Scenario("faults", "kill -9 of every service and store under open-loop load, 20 times each", 12, measure)

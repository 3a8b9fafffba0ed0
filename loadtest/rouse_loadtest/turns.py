"""Policies compared: each has a mesh of its own on the same functions, and the same requests, in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rouse_loadtest import fleet, mesh
from rouse_loadtest.fleet import Fleet, Moves
from rouse_loadtest.playing import Call, Played, play
from rouse_loadtest.report import table
from rouse_loadtest.tallies import HEADER, Tally, compliant, together
from rouse_simulator.arrivals import Arrivals

# Where the sender itself was later than this (p99), the machine stood still, and the turn says nothing of a policy: it
# is taken again, so often at most.
SENDER_LATE_S, TAKES = 1.0, 3


@dataclass(frozen=True)
class Setting:
    """What every policy is given: devices, functions, requests.

    Args:
        flags, env: of the mesh; each policy adds its own.
        timeout_s: how long clients wait for an answer.
    """

    flags: tuple[str, ...]
    env: Mapping[str, str]
    functions: Fleet
    calls: tuple[Call, ...]
    arrivals: Arrivals
    timeout_s: float

    @property
    def called(self) -> int:
        """Functions that have requests at all."""
        return len(set(self.arrivals.functions.tolist()))


@dataclass(frozen=True)
class Turn:
    """One policy's turn in one round."""

    played: Played
    moves: Moves

    @property
    def whole(self) -> Tally:
        return together(self.played.tallies)

    @property
    def sender_late_s(self) -> float:
        """How late requests were sent, p99."""
        return self.played.sender.quantile_s(0.99)

    def kept(self) -> int:
        """Functions that were called and kept their objective."""
        return compliant([tally for tally in self.played.tallies if tally.sent])

    def served(self) -> int:
        """Functions that answered."""
        return sum(tally.answers > 0 for tally in self.played.tallies)

    def throughput(self) -> float:
        """Answers a second."""
        return self.whole.answers / self.played.seconds

    def p98_s(self, timeout_s: float) -> float:
        """Over all requests; what was not answered counts as answered when its client gave up."""
        return min(self.whole.quantile_s(0.98), timeout_s)


def take_all(
    folder: Path, setting: Setting, policies: Mapping[str, Mapping[str, str]], rounds: int
) -> dict[str, list[Turn]]:
    """Each policy's turn in each round, in an order that moves on by one a round."""
    turns: dict[str, list[Turn]] = {name: [] for name in policies}
    for number in range(rounds):
        for name in _in_turn(list(policies), number):
            turns[name].append(_take_valid(folder, setting, policies[name], name, number))
    return turns


def _take_valid(folder: Path, setting: Setting, env: Mapping[str, str], name: str, number: int) -> Turn:
    """A turn in which requests were sent when they were due; the last one, where the machine never kept up."""
    for takes in range(1, TAKES + 1):
        turn = take(folder, setting, env)
        _say(name, number, turn, setting.called)
        if turn.sender_late_s <= SENDER_LATE_S:
            break
        print(f"  the sender was late: {'taken again' if takes < TAKES else 'it counts all the same'}", flush=True)
    return turn


def _in_turn(names: Sequence[str], number: int) -> list[str]:
    first = number % len(names)
    return [*names[first:], *names[:first]]


def take(folder: Path, setting: Setting, env: Mapping[str, str]) -> Turn:
    """A mesh of its own with one policy, on what was deployed in the folder, and all the requests."""
    asked = np.bincount(setting.arrivals.functions, minlength=setting.arrivals.count)
    with mesh.running(folder, *setting.flags, env={**setting.env, **env}) as running:
        fleet.ready(running, setting.functions)
        with fleet.Asker(running, setting.functions) as asker:
            # The busiest first: early binding takes those in.
            asker.warm(np.argsort(-asked, kind="stable").tolist())
        before = fleet.moves(running)
        played = asyncio.run(play(running.address, setting.calls, setting.arrivals, setting.timeout_s))
        return Turn(played, fleet.moves(running).since(before))


def _say(name: str, number: int, turn: Turn, called: int) -> None:
    whole = turn.whole
    print(
        f"  round {number + 1}, {name}: {whole.answers} of {whole.sent} answered, {turn.kept()} of "
        f"{called} functions within their objective, {turn.moves.swaps} swaps; the sender was "
        f"{turn.sender_late_s * 1000:.1f} ms late (p99)",
        flush=True,
    )


def show_functions(setting: Setting, turns: Mapping[str, Sequence[Turn]]) -> None:
    """Prints what became of each function's requests, all rounds together."""
    for name, of in turns.items():
        each = [together(turn.played.tallies[number] for turn in of) for number in range(len(setting.functions.names))]
        rows = [tally.row(setting.functions.names[number]) for number, tally in enumerate(each)]
        print(f"\n{name}")
        print(table([*rows, together(each).row("all")], HEADER), end="\n\n")

"""What is read off a policy's turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rouse_loadtest import turns
from rouse_loadtest.fleet import Cost, Fleet, Moves
from rouse_loadtest.playing import Answered, Played
from rouse_loadtest.scenarios import balance, predict
from rouse_loadtest.tallies import Tally
from rouse_loadtest.turns import Turn
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.results import DeviceResult, FunctionResult, Results


def answered(function: int, device: str, execute_s: float) -> Answered:
    return Answered(function, 0.0, execute_s, 0.0, 0.0, execute_s, execute_s, False, device)


def turn(*functions: tuple[int, int], device: str = "gpu0") -> Turn:
    """A turn of ten seconds: of each function how many were answered, in time, and how many were refused."""
    played = Played([Tally(objective_s=0.2) for _ in functions], seconds=10.0)
    for number, (answers, refused) in enumerate(functions):
        for _ in range(answers):
            played.tallies[number].answered(0.1)
            played.answers.append(answered(number, device, 0.1))
        for _ in range(refused):
            played.tallies[number].failed("DEVICE_FULL_EARLY_BINDING")
    return Turn(played, Moves(3, 2))


def test_a_function_without_requests_has_kept_nothing() -> None:
    made = turn((10, 0), (0, 0), (0, 5), (97, 3))
    assert (made.kept(), made.served()) == (1, 2)
    assert made.throughput() == pytest.approx(10.7)


def test_what_was_not_answered_counts_with_its_clients_patience() -> None:
    assert turn((99, 1)).p98_s(2.0) == pytest.approx(0.1, rel=0.01)
    assert turn((97, 3)).p98_s(2.0) == 2.0


@pytest.mark.parametrize(("late_s", "taken"), [([0.01], 1), ([5.0, 0.01], 2), ([5.0] * 4, 3)])
def test_a_turn_whose_sender_was_late_is_taken_again(
    late_s: list[float], taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def take(folder: Path, setting: turns.Setting, env: Mapping[str, str]) -> Turn:
        made.append(turn((10, 0)))
        made[-1].played.sender.answered(late_s[len(made) - 1])
        return made[-1]

    monkeypatch.setattr(turns, "take", take)
    arrivals = Arrivals(np.zeros(1), np.zeros(1, dtype=np.int64), 1)
    setting = turns.Setting((), {}, Fleet(("f",), 1, 100), (), arrivals, 1.0)
    (kept,) = turns.take_all(tmp_path, setting, {"rouse": {}}, 1)["rouse"]
    assert kept is made[-1]
    assert len(made) == taken


def test_the_load_of_a_device_is_the_part_of_the_time_that_it_worked() -> None:
    assert balance.loads(turn((20, 0), device="gpu1")) == pytest.approx([0.0, 0.2])


def test_moves_are_counted_from_an_earlier_look() -> None:
    assert Moves(7, 5).since(Moves(3, 2)) == Moves(4, 3)


def test_an_objective_is_a_multiple_in_tens_of_milliseconds() -> None:
    assert Cost(0.0431, 0.03, 20.0).objective_ms(4.0) == 180


def test_a_simulated_run_is_counted_as_a_live_one() -> None:
    functions = [FunctionResult("m", 0.2, arrived=4), FunctionResult("m", 0.2, arrived=2)]
    functions[0].latencies_s.extend([0.1, 0.1, 0.3])
    functions[1].latencies_s.extend([0.1, 0.1])
    part = Results(functions, [DeviceResult("n", "gpu0", swaps_host=3)], 1.0)
    figures = predict._simulated([part, part])
    # Of twelve requests two were late and two never answered; the first function missed its objective.
    assert (figures.swaps, figures.compliance) == (6, 0.5)
    assert figures.in_time == pytest.approx(8 / 12)
    assert figures.p50 == pytest.approx(0.1, rel=0.01)
    assert figures.p98 == float("inf")

"""Tapes of small functions: verified, guarded, refused with reasons, saved and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("rouse_native._redirect", reason="the native core is not built")

from rouse_native import redirect, tape


def settled(function: tape.Function, inputs: list[torch.Tensor], what: str) -> tape.TapeInfo:
    """After three eager requests: what the executor made of them. The first of a process learns shapes."""
    before = {one.signature for one in tape.infos()}
    for _ in range(3):
        tape.record(function, inputs, what)
    (info,) = [one for one in tape.infos() if one.signature not in before]
    return info


def test_a_tape_gives_the_bits_of_the_function(rouse: str) -> None:
    weight = torch.randn(32, 32)
    held = weight.to(rouse)
    x = torch.randn(8, 32)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ held + 1, -1).sum(0)

    info = settled(function, [x.to(rouse)], "softmax")
    assert info.tapes == 1, info.refused
    for seed in range(5):
        other = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
        replayed = tape.replay([other.to(rouse)], "softmax")
        assert replayed.outcome is tape.Outcome.DONE
        assert torch.equal(replayed.outputs[0].cpu(), torch.softmax(other @ weight + 1, -1).sum(0))


def test_another_shape_or_another_function_has_no_tape(rouse: str) -> None:
    assert settled(torch.relu, [torch.ones(3, device=rouse)], "relu").tapes == 1
    assert tape.replay([torch.ones(4, device=rouse)], "relu").outcome is tape.Outcome.NO_TAPE
    assert tape.replay([torch.ones(3, device=rouse)], "sigmoid").outcome is tape.Outcome.NO_TAPE


def test_branches_on_values_are_guarded(rouse: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if bool((x > 0).all()) else x - 1

    positive, negative = torch.full((4,), 3.0), torch.full((4,), -3.0)
    assert settled(function, [positive.to(rouse)], "branch").tapes == 1
    assert tape.replay([negative.to(rouse)], "branch").outcome is tape.Outcome.GUARD_MISSED
    for _ in range(3):
        (eager,) = tape.call(function, [negative.to(rouse)], "branch")
        assert torch.equal(eager.cpu(), negative - 1)
    for value in (positive, negative, positive):
        replayed = tape.replay([value.to(rouse)], "branch")
        assert replayed.outcome is tape.Outcome.DONE
        assert torch.equal(replayed.outputs[0].cpu(), function(value))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.nonzero, "depends on data"),
        (torch.bernoulli, "drew random numbers"),
        (lambda x: x.add_(1).sum() if float(x.sum()) > 0 else x, "could not be taken back"),
    ],
    ids=["shape", "random", "guard"],
)
def test_what_is_not_taped_says_why(rouse: str, function: tape.Function, reason: str) -> None:
    def wrapped(x: torch.Tensor) -> torch.Tensor | Sequence[torch.Tensor]:
        if reason == "could not be taken back":
            x.add_(0.25)
            return x * 2 if float(x[0]) > 0 else x
        return function(x)

    info = settled(wrapped, [torch.full((5,), 0.5, device=rouse)], reason)
    assert info.tapes == 0
    assert reason in info.refused


def test_a_seed_inside_the_request_makes_random_numbers_repeat(rouse: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return x + torch.rand(6, device=rouse)

    x = torch.zeros(6)
    info = settled(function, [x.to(rouse)], "seeded")
    assert info.tapes == 1, info.refused
    torch.manual_seed(7)
    expected = x + torch.rand(6)
    assert torch.equal(tape.replay([x.to(rouse)], "seeded").outputs[0].cpu(), expected)


def test_a_changed_input_is_changed_by_the_replay_too(rouse: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    for _ in range(3):
        tape.record(function, [torch.ones(4, device=rouse)], "in place")
    x = torch.full((4,), 5.0, device=rouse)
    replayed = tape.replay([x], "in place")
    assert replayed.outcome is tape.Outcome.DONE
    assert torch.equal(x.cpu(), torch.full((4,), 10.0))


def test_what_the_session_frees_takes_its_tapes_along(rouse: str) -> None:
    held = [torch.full((4,), 2.0, device=rouse)]
    x = torch.ones(4, device=rouse)
    assert settled(lambda x: x + held[0], [x], "freed").tapes == 1
    held.clear()
    redirect.synchronize()
    for _ in range(3):
        torch.zeros(4, device=rouse)
    assert tape.replay([x], "freed").outcome is tape.Outcome.NO_TAPE


def test_plans_reuse_memory(rouse: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.tanh(x) + 1
        return x

    x = torch.randn(64, 64, device=rouse)
    assert settled(function, [x], "chain").tapes == 1
    for _ in range(3):
        tape.replay([x], "chain")
    (info,) = [one for one in tape.infos() if one.all_bytes > 30 * 64 * 64 * 4]
    assert info.planned_blocks > 50
    assert info.least_bytes <= info.arena_bytes <= 4 * 64 * 64 * 4 * 1.2


def test_a_saved_tape_runs_in_a_new_executor_without_the_function(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).eval()
    x = torch.randn(3, 16)
    with torch.inference_mode():
        expected = model(x)
    layout = tape.write_image(model, tmp_path / "image")
    tapes = tmp_path / "tapes"
    tapes.mkdir()
    with redirect.spawn_local(tapes=tapes, model=tmp_path / "image"), torch.inference_mode():
        tape.adopt_image(model, layout)
        info = settled(model, [x.to("rouse")], "mlp")
        assert info.tapes == 1, info.refused
    assert len(list(tapes.glob("*.tape"))) == 1
    with redirect.spawn_local(tapes=tapes, model=tmp_path / "image"), torch.inference_mode():
        replayed = tape.replay([x.to("rouse")], "mlp")
        assert replayed.outcome is tape.Outcome.DONE
        assert torch.equal(replayed.outputs[0].cpu(), expected)
    # Other weights: the tape does not fit.
    (tmp_path / "other").write_bytes((tmp_path / "image").read_bytes() + bytes(4096))
    with redirect.spawn_local(tapes=tapes, model=tmp_path / "other"), torch.inference_mode():
        assert tape.replay([x.to("rouse")], "mlp").outcome is tape.Outcome.NO_TAPE

"""What `make gpu-check` concludes: it never says that something passed that did not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rouse_loadtest.gpu_check import (
    Outcome,
    Part,
    exit_code,
    google_test,
    gpu_name,
    judged,
    main,
    measured,
    report_text,
    scenario,
)
from rouse_loadtest.report import Measure


@pytest.mark.parametrize(
    ("ran", "skipped", "failed", "outcome"),
    [
        (3, 0, [], Outcome.PASSED),
        (0, 0, [], Outcome.FAILED),
        (0, 3, [], Outcome.FAILED),
        (3, 1, [], Outcome.FAILED),
        (3, 0, ["Suite.One"], Outcome.FAILED),
    ],
)
def test_a_part_passes_only_where_all_of_it_ran(ran: int, skipped: int, failed: list[str], outcome: Outcome) -> None:
    assert judged("part", ran, skipped, failed).outcome is outcome


def test_it_succeeds_only_where_every_part_ran_and_passed() -> None:
    passed = Part("device memory", Outcome.PASSED, "8 passed", 8)
    assert exit_code([passed]) == 0
    assert exit_code([passed, Part("exactness", Outcome.FAILED, "", 1)]) == 1
    assert exit_code([passed, Part("exactness", Outcome.PASSED, "", 0)]) == 1
    assert exit_code([]) == 1


GOOD = Measure("ratio", [0.9, 1.0, 1.3], "ratio", 1.1)
BAD = Measure("share", [0.25], "ratio", 0.9, "higher")
SHOWN = Measure("speed", [12.5], "GB/s")


def test_a_scenario_passes_where_all_its_bars_hold_on_that_device() -> None:
    def part(*measures: Measure, device: str = "cuda:0") -> Part:
        return measured("swap", "cuda:0", measures, {"device": device})

    assert (part(GOOD, SHOWN).outcome, part(GOOD, SHOWN).ran) == (Outcome.PASSED, 2)
    assert (part(GOOD, BAD).outcome, part(GOOD, BAD).said) == (Outcome.FAILED, "does not hold: share: 0.25, bar 0.9")
    assert part().outcome is Outcome.FAILED
    elsewhere = part(GOOD, device="host:0")
    assert (elsewhere.outcome, elsewhere.ran) == (Outcome.FAILED, 0)
    assert "it ran on host:0" in elsewhere.said


def test_the_report_has_the_figures_of_scenarios_also_where_they_do_not_hold() -> None:
    crashed = Part("sessions", Outcome.FAILED, "it ended with -6: main()\n[ RUN      ] One\n")
    parts = [measured("swap", "cuda:0", [GOOD, BAD, SHOWN], {"device": "cuda:0"}), crashed]
    text = report_text("a GPU", parts, "2026-01-02", {"cpu": "x"})
    assert "| swap | failed | does not hold: share: 0.25, bar 0.9 |" in text
    assert "| sessions | failed | it ended with -6: main() [ RUN ] One |" in text
    assert "| ratio | 1 | ratio | 0.9 … 1.3 | ≤ 1.1 | holds |" in text
    assert "| share | 0.25 | ratio | 0.25 … 0.25 | ≥ 0.9 | DOES NOT HOLD |" in text
    assert "| speed | 12.5 | GB/s | 12.5 … 12.5 |  |  |" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## swap"]


@pytest.mark.parametrize(
    ("name", "device", "limit_s", "said"),
    [
        ("remoting", "host:0", 0.05, "not done within 0 s"),
        ("remoting", "cuda:63", 60.0, "it ended with 2: make bench: PyTorch"),
        ("none", "host:0", 60.0, "it ended with 2: make bench: there is no scenario 'none'"),
    ],
)
def test_a_scenario_that_does_not_come_to_its_end_fails(name: str, device: str, limit_s: float, said: str) -> None:
    part = scenario(name, limit_s, device)
    assert (part.outcome, part.ran, list(part.measures)) == (Outcome.FAILED, 0, [])
    assert said in part.said


def test_a_machine_without_a_gpu_is_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, why = gpu_name("libno-such-driver.so")
    assert (name, "no NVIDIA driver" in why) == ("", True)
    name, why = gpu_name("libc.so.6")
    assert (name, "is no NVIDIA driver" in why) == ("", True)
    if gpu_name()[0]:
        pytest.skip("this machine has a GPU")
    assert main(lambda: tmp_path) == 2
    said = capsys.readouterr().out
    assert "nothing ran" in said
    assert "make gpu-check" in said.splitlines()[-1]


def program(folder: Path, tests: list[dict[str, object]], code: int = 0) -> Path:
    """A program that reports these tests as GoogleTest does."""
    report = folder / "report.json"
    report.write_text(json.dumps({"testsuites": [{"testsuite": tests}]}))
    made = folder / "program"
    made.write_text(f"""#!/bin/sh
for argument in "$@"; do
  case $argument in --gtest_output=json:*) cp {report} "${{argument#*json:}}" ;; esac
done
exit {code}
""")
    made.chmod(0o755)
    return made


def test_native_tests_that_skip_or_fail_do_not_pass(tmp_path: Path) -> None:
    def test(result: str, **more: object) -> dict[str, object]:
        return {"classname": "Kinds/Conformance", "name": "One/cuda", "result": result, **more}

    def outcome(*tests: dict[str, object], code: int = 0) -> Outcome:
        return google_test("device memory", program(tmp_path, list(tests), code), "*", 30.0).outcome

    assert outcome(test("COMPLETED")) is Outcome.PASSED
    assert outcome() is Outcome.FAILED
    assert outcome(test("SKIPPED")) is Outcome.FAILED
    assert outcome(test("COMPLETED"), test("SKIPPED")) is Outcome.FAILED
    assert outcome(test("COMPLETED", failures=[{}]), code=1) is Outcome.FAILED
    assert outcome(test("COMPLETED"), code=139) is Outcome.FAILED

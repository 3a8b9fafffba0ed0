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
    missing_parts,
    report_text,
)


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


def test_what_is_not_implemented_is_named_and_never_success() -> None:
    passed = Part("device memory", Outcome.PASSED, "8 passed", 8)
    assert exit_code([passed]) == 0
    assert exit_code([passed, *missing_parts()]) == 3
    assert exit_code([passed, Part("exactness", Outcome.FAILED, "", 1)]) == 1
    assert exit_code(missing_parts()) == 1
    assert exit_code([]) == 1
    text = report_text("a GPU", [passed, *missing_parts()], "2026-01-02", {"cpu": "x"})
    for part in missing_parts():
        assert f"| {part.name} | not implemented | {part.said} |" in text


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

"""The scenarios of `make bench` that look for faults, in short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(scenario: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    """One short run, and its measures."""
    result = folder / "result.json"
    command = [
        sys.executable,
        "-m",
        "rouse_loadtest",
        scenario,
        "--quick",
        "--json",
        str(result),
        "--plots",
        str(folder),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "loadtest")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert result.exists(), done.stdout + done.stderr
    assert (folder / f"{scenario}.html").exists()
    return done, {m["name"]: m["value"] for m in json.loads(result.read_text())["measures"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_under_load_no_request_is_lost_or_run_twice(tmp_path: Path) -> None:
    done, measures = run("faults", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert measures["requests"] > 500
    assert measures["ran_twice"] == measures["never_ended"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_late_binding_serves_functions_that_early_binding_has_no_room_for(tmp_path: Path) -> None:
    done, measures = run("density", tmp_path)
    total = measures["functions_total"]
    assert total >= 5
    # How fast is for `make bench` to say: the machine that tests may be busy.
    assert measures["functions_served.rouse"] == measures["functions_served.lru_fifo"] == total, done.stdout
    assert measures["functions_served.native"] == 1
    assert measures["swaps.native"] < measures["swaps.rouse"], done.stdout
    assert "WRONG_ANSWER" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_live_run_and_its_prediction_are_compared(tmp_path: Path) -> None:
    done, measures = run("predict", tmp_path)
    assert (tmp_path / "predict-2.profile.json").exists()
    # Swaps hang on the policies far more than on how busy the machine is.
    assert 0.5 < measures["predicted_over_measured.swaps"] < 2, done.stdout
    assert measures["predicted_over_measured.p98"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_devices_share_what_early_binding_leaves_to_one(tmp_path: Path) -> None:
    done, measures = run("balance", tmp_path)
    assert measures["least_over_most_load.rouse"] > measures["least_over_most_load.early"], done.stdout

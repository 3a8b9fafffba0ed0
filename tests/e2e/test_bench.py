"""The scenarios of `make bench` that look for faults, in short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_under_load_no_request_is_lost_or_run_twice(tmp_path: Path) -> None:
    result = tmp_path / "faults.json"
    done = subprocess.run(
        [sys.executable, "-m", "rouse_loadtest", "faults", "--quick", "--json", str(result), "--plots", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "loadtest")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measures = {m["name"]: m["value"] for m in json.loads(result.read_text())["measures"]}
    assert measures["requests"] > 500
    assert measures["ran_twice"] == measures["never_ended"] == 0

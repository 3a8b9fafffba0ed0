"""Outside clients: programs that speak to a mesh in a process of their own, and the functions that they know."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import rouse
from rouse_testkit.source import ROOT

EXAMPLES = ("simple", "simple_string", "simple_identity", "repeat_int32")
TIMEOUT_S = 170.0


def deploy_examples(client: rouse.Client, *names: str) -> None:
    """Deploys functions of examples/; without names those that Triton's own examples call."""
    for name in names or EXAMPLES:
        client.deploy(ROOT / "examples" / name)


def run_client(
    program: Path, *arguments: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> str:
    """Runs a program and returns what it printed. Fails with its errors where it fails, and after TIMEOUT_S."""
    done = subprocess.run(
        [python, str(program), *arguments],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{program.name} {' '.join(arguments)}:\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
    return done.stdout

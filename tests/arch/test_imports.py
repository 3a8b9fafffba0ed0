"""Who may import whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rouse_testkit.source import ROOT, sources

# A policy decides from its arguments: what it needs to know of time, chance or the machine is passed in.
IMPURE = {"asyncio", "os", "random", "secrets", "socket", "subprocess", "threading", "time", "uuid"}


def test_policies_import_the_pure_part_of_the_standard_library_only() -> None:
    bad = [
        f"{source.name}:{line} imports {module}"
        for source in sources("libs/policy/rouse_policy")
        for module, line in source.imports
        if module.split(".")[0] != "rouse_policy"
        and (module.split(".")[0] not in sys.stdlib_module_names or module.split(".")[0] in IMPURE)
    ]
    assert not bad, "a policy is a pure function of its arguments; pass the time, the seed or the snapshot in:\n" + (
        "\n".join(bad)
    )


def test_packages_keep_to_their_layer() -> None:
    """The contracts of [tool.importlinter] in pyproject.toml."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(program)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"an import goes through a wall (pyproject.toml says why it stands):\n{done.stdout}"


def test_nothing_but_the_contracts_imports_generated_code() -> None:
    bad = [
        f"{source.name}:{line} imports {module}"
        for source in sources("libs", "services", "tests", "scripts")
        if not source.name.startswith("libs/contracts/")
        for module, line in source.imports
        if module.startswith("rouse_contracts.gen")
    ]
    assert not bad, "import rouse_contracts.<area> instead, which hides how the code is generated:\n" + "\n".join(bad)

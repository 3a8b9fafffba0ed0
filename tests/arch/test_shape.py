"""How services, policies and files are made."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rouse
from rouse_testkit.source import ROOT, dotted, services, sources

MAX_LINES = 450
EVERYWHERE = ("libs", "services", "tests", "scripts", "native/python")

# What users may rely on. Taking a name away breaks them; adding one is a promise.
PUBLIC = {
    "AddressRange", "AlreadyExists", "AsyncClient",
    "Batching", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Deployment", "Description",
    "Device", "Event", "FailedPrecondition", "Function", "Instance", "Internal", "InvalidArgument",
    "Key", "Limits", "NewKey", "Node", "NotFound",
    "Objective", "Package", "PackageError", "PermissionDenied", "Progress", "Residency", "ResourceExhausted",
    "Resources", "Result", "RouseError", "Scaling", "Secret", "Service", "Span", "Status",
    "Tenant", "TensorSpec", "Timings",
    "Unauthenticated", "Unavailable", "Unimplemented", "Unreachable", "Usage", "UsageRow", "Version",
    "__version__", "read_package",
}  # fmt: skip


@pytest.mark.parametrize("package", services(), ids=lambda path: path.name)
def test_a_service_has_its_four_parts(package: Path) -> None:
    parts = ("__main__", "app", "config", "service")
    missing = [part for part in parts if not (package / f"{part}.py").exists() and not (package / part).is_dir()]
    assert not missing, (
        f"{package.name} lacks {', '.join(missing)}: __main__ starts it, app puts it together, config says what it can "
        "be told, service holds the thin RPC handlers"
    )


def test_there_are_eight_services() -> None:
    assert len(services()) == 8


def test_files_stay_readable() -> None:
    long = [f"{s.name}: {len(s.lines)} lines" for s in sources(*EVERYWHERE) if len(s.lines) > MAX_LINES]
    assert not long, f"a file of more than {MAX_LINES} lines does two things; split it:\n" + "\n".join(long)


def test_policies_take_and_give_frozen_dataclasses() -> None:
    bad = []
    for source in sources("libs/policy/rouse_policy"):
        for node in source.nodes:
            for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if dotted(call).split(".")[-1] != "dataclass":
                    continue
                words = decorator.keywords if isinstance(decorator, ast.Call) else []
                frozen = any(w.arg == "frozen" and getattr(w.value, "value", False) is True for w in words)
                if not frozen:
                    bad.append(f"{source.at(node)} {node.name}")  # type: ignore[attr-defined]
    assert not bad, "write @dataclass(frozen=True): snapshots, states and decisions are values:\n" + "\n".join(bad)


def test_the_public_names_of_the_sdk_are_these() -> None:
    assert set(rouse.__all__) == PUBLIC, (
        "names were added or taken away; change PUBLIC on purpose, and the docs with it"
    )
    assert [name for name in sorted(PUBLIC) if not hasattr(rouse, name)] == []


def tracked() -> list[str]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    done = subprocess.run([git, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_generated_code_is_not_committed() -> None:
    bad = [name for name in tracked() if name.endswith(("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")) or "/gen/" in name]
    assert not bad, "set-up generates it; remove it with `git rm --cached`:\n" + "\n".join(bad)


def test_nothing_names_the_folder_of_this_checkout() -> None:
    bad = []
    for name in tracked():
        path = ROOT / name
        if path.is_file() and str(ROOT).encode() in path.read_bytes():
            bad.append(name)
    assert not bad, f"these name {ROOT}, which exists on this machine only:\n" + "\n".join(bad)


def test_contracts_pass_their_linter() -> None:
    buf = Path(sys.executable).with_name("buf")
    done = subprocess.run([str(buf), "lint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"`buf lint` complains:\n{done.stdout}{done.stderr}"


METRICS = ("Counter", "Gauge", "Histogram", "CounterMetricFamily", "GaugeMetricFamily")


def test_a_metric_belongs_to_one_package() -> None:
    """One name, one meaning; and two services can be put together in one process of a test."""
    owners: dict[str, set[str]] = {}
    for source in sources("services", "libs"):
        for name, call in source.calls():
            if name in METRICS and call.args and isinstance(call.args[0], ast.Constant):
                metric = str(call.args[0].value).removesuffix("_total")
                owners.setdefault(metric, set()).add(str(source.path.parent))
    assert len(owners) > 40
    shared = {name: folders for name, folders in owners.items() if len(folders) > 1}
    assert not shared, f"rename a metric of these: {shared}"

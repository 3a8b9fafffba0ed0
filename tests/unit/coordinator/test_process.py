from __future__ import annotations

import os
from pathlib import Path

import pytest

from rouse_common.config import ConfigError, load
from rouse_contracts.functions import ArtefactFormat, FunctionSpec, FunctionVersion, Resources
from rouse_coordinator.adapters.process import Launch, environment, explain
from rouse_coordinator.adapters.quarters import Quarters
from rouse_coordinator.config import MAX_RUNTIME_DIR, CoordinatorConfig
from rouse_coordinator.folder import RuntimeFolder

FLAGS = {
    "node-id": "n1", "cluster-manager": "h:1", "gpu-server": "h:2", "node-router": "h:3", "node-router-link": "h:4",
    "runtime-dir": "/run/r",
}  # fmt: skip


def config(**changes: str) -> CoordinatorConfig:
    values = FLAGS | {name.replace("_", "-"): value for name, value in changes.items()}
    return load(CoordinatorConfig, "coordinator", [f"--{name}={value}" for name, value in values.items()], {})


def test_an_instance_sees_only_what_is_named(tmp_path: Path) -> None:
    version = FunctionVersion(
        spec=FunctionSpec(name="f", resources=Resources(threads=2)),
        format=ArtefactFormat.ARTEFACT_FORMAT_HUGGING_FACE,
    )
    ours = {"PATH": "/bin", "HOME": "/root", "ROUSE_GATEWAY_REDIS": "redis://:secret@h", "PYTHONPATH": "/x"}
    quarters = Quarters(tmp_path / "i1", 0, isolated=False)
    seen = environment(Launch("i1", "token", version, "unix:/run/r/coordinator.sock"), config(), quarters, ours)
    quarters.remove()
    assert seen["PATH"] == "/bin"
    assert not {"HOME", "ROUSE_GATEWAY_REDIS", "PYTHONPATH"} & set(seen)
    assert seen["OMP_NUM_THREADS"] == "2"
    assert seen["ROUSE_INSTANCE_FORMAT"] == "HUGGING_FACE"
    assert seen["ROUSE_PARENT_PID"] == str(os.getpid())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "exit code 1"),
        (-9, "SIGKILL"),
        (-11, "SIGSEGV"),
        (-50, "signal 50"),
        (70, "far past its deadline"),
        (-14, "far past its deadline"),
    ],
)
def test_the_end_of_a_process_in_words(code: int, text: str) -> None:
    assert text in explain(code, [])
    assert explain(code, ["first", " second "]).endswith("last lines: first | second")


@pytest.mark.parametrize(
    "changes",
    [
        {"node_id": ""},
        {"node_id": "a b"},
        {"gpu_server": "nowhere"},
        {"runtime_dir": "relative"},
        {"runtime_dir": "/" + "x" * MAX_RUNTIME_DIR},
    ],
)
def test_settings_that_cannot_be_used_stop_the_start(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        config(**changes)


def test_the_longest_folder_still_has_room_for_a_socket() -> None:
    longest = config(runtime_dir="/" + "x" * (MAX_RUNTIME_DIR - 1)).runtime_dir
    assert len(f"{longest}/{'i' * 36}.sock.link") <= 107


def test_the_folder_is_ours_alone_and_cleared(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    first = RuntimeFolder(str(path))
    first.open()
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "old.sock").touch()
    with pytest.raises(OSError, match="another coordinator"):
        RuntimeFolder(str(path)).open()
    assert (path / "old.sock").exists()
    first.close()
    assert not list(path.iterdir())
    for name in ("old.sock", "old.sock.link"):
        (path / name).touch()
    second = RuntimeFolder(str(path))
    second.open()
    assert not list(path.glob("old*"))
    second.close()

"""What a mesh can be told: defaults that fit the machine, and bad flags in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.config import ConfigError, parse_size
from rouse_embedded.cli import main, parse
from rouse_embedded.options import (
    DEFAULT_DEVICE_BYTES,
    DEFAULT_HOST_BYTES,
    LEAST_BYTES,
    Device,
    MeshOptions,
    default_data_dir,
    fitted,
    parse_device,
)

GIB = 1 << 30


def test_flags_become_options(tmp_path: Path) -> None:
    argv = ["up", "--data-dir", str(tmp_path), "--nodes", "2", "--device", "host:a=1GiB", "--device", "host:b=512MiB"]
    options, verbose = parse(
        [*argv, "--host-memory", "3GiB", "--listen", "0.0.0.0:9", "--metrics", "--verbose", "--executors"]
    )
    assert options.parsed_devices() == [Device("host", "a", GIB), Device("host", "b", GIB // 2)]
    assert (options.data_dir, options.nodes, options.listen, options.metrics) == (tmp_path, 2, "0.0.0.0:9", True)
    assert options.memory_bytes == 2 * (3 * GIB + GIB + GIB // 2)
    assert (verbose, options.log_level, options.executors) == (True, "DEBUG", True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["up", "--nodes", "0"], "--nodes=0: want 1 to"),
        (["up", "--nodes", "two"], "invalid int value: 'two'"),
        (["up", "--device", "gpu0"], "--device=gpu0: want KIND:NAME=SIZE"),
        (["up", "--device", "tpu:gpu0=1GiB"], "unknown kind tpu; known: host, cuda"),
        (["up", "--device", "cuda:gpu0=1GiB"], "start with --executors"),
        (["up", "--device", "cuda:gpu0=1GiB", "--device", "host:gpu1=1GiB", "--executors"], "devices of one kind"),
        (["up", "--device", "cuda:gpu0=1GiB", "--executors", "--nodes", "2"], "nodes do not share CUDA devices"),
        (["up", "--device", "host:gpu0=much"], "--device gpu0=much: want a size"),
        (["up", "--device", "host:../x=1GiB"], "want KIND:NAME=SIZE"),
        (["up", "--device", "host:a=1GiB", "--device", "host:a=2GiB"], "two devices are named a"),
        (["up", "--host-memory", "-1"], "--host-memory"),
        (["up", "--listen", "8001"], "--listen=8001: want host:port"),
        (["up", "--lisen", "x"], "--lisen"),
        (["down"], "invalid choice: 'down'"),
        ([], "required"),
    ],
)
def test_a_bad_flag_is_one_line_and_code_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("rouse up: ")
    assert len(said.splitlines()) == 1, said


@given(st.integers(1, 64), st.integers(0, 1 << 45))
def test_defaults_fit_the_machine(nodes: int, free_bytes: int) -> None:
    options = fitted(MeshOptions(Path("x"), nodes=nodes), free_bytes)
    (device,) = options.parsed_devices()
    assert (device.kind, device.name) == ("host", "gpu0")
    assert LEAST_BYTES <= device.capacity_bytes <= DEFAULT_DEVICE_BYTES
    assert LEAST_BYTES <= options.host_memory_bytes <= DEFAULT_HOST_BYTES
    if free_bytes > nodes * 10 * LEAST_BYTES:
        assert options.memory_bytes <= free_bytes // 2


def test_on_a_large_machine_the_documented_defaults_hold() -> None:
    options = fitted(MeshOptions(Path("x")), 64 * GIB)
    assert options.devices == ("host:gpu0=2048MiB",)
    assert parse_size(options.host_memory, "it") == 4 * GIB


def test_what_was_given_is_kept() -> None:
    given_options = MeshOptions(Path("x"), devices=("host:a=9GiB",), host_memory="9GiB")
    assert fitted(given_options, 0) == given_options


def test_the_data_folder_is_named_or_at_home() -> None:
    assert default_data_dir({"ROUSE_DATA_DIR": "/some/where"}) == Path("/some/where")
    assert default_data_dir({}) == Path.home() / ".rouse"


@given(st.text(max_size=30))
def test_any_text_is_a_device_or_refused(text: str) -> None:
    try:
        device = parse_device(text)
    except ConfigError as error:
        assert "--device" in str(error)  # noqa: PT017 - either outcome is right, this is what one of them says
        return
    assert device.capacity_bytes > 0
    assert "/" not in device.name

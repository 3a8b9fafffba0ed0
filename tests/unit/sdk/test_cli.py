"""The command line against a gRPC server: what it prints, where, and how it fails."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rouse.cli.main import run
from rouse_contracts.status import ErrorDetails

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Cli:
    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._address, self._capsys = address, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        found = run([*arguments, "--address", self._address])
        self.out, self.err = self._capsys.readouterr()
        assert found == code, f"exit code {found}: {self.err}"
        return self.out

    def json(self, *arguments: str) -> Any:
        """The one document on standard output, with nothing beside it."""
        document = json.loads(self(*arguments, "--json"))
        assert self.err == ""
        return document


@pytest.fixture
def cli(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("ROUSE_DEBUG", raising=False)
    return Cli(address, capsys)


def test_deploy_and_functions(cli: Cli, folder: Path) -> None:
    assert "digits version 1 is READY" in cli("deploy", str(folder))
    assert "uploading 2.5 MiB" in cli.err
    assert "digits" in cli("functions")
    assert cli.json("functions")["functions"][0]["version"]["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 2]}
    ]


def test_deploy_flags_reach_the_mesh(cli: Cli, double: Any, folder: Path) -> None:
    done = cli.json(
        "deploy", str(folder), "--name", "other", "--option", "depth=4", "--option", "x=a=b", "--min-instances", "2",
        "--no-wake",
    )  # fmt: skip
    spec = double.deployed[0].spec
    assert (done["function"], done["state"], spec.name) == ("other", "DEPLOYED", "other")
    assert dict(spec.options) == {"depth": "4", "x": "a=b"}
    assert (spec.scaling.min_instances, spec.scaling.max_instances) == (2, 2)
    assert spec.scaling.idle_timeout.ToMilliseconds() == 12_500, "the rest of rouse.toml stays"


def test_deploying_again_says_unchanged(cli: Cli, folder: Path) -> None:
    cli("deploy", str(folder))
    assert "version 1 is READY, unchanged" in cli("deploy", str(folder))
    assert "version 2 is READY; it has no traffic yet" in cli("deploy", str(folder), "--force", "--no-traffic")
    assert "rouse traffic digits 3=100" in cli("deploy", str(folder), "--force", "--no-traffic")


def test_a_deployment_that_does_not_load_shows_the_log(cli: Cli, double: Any, folder: Path) -> None:
    double.lines = ["2026 ERROR x ValueError: layer 3 instance=i-1"]
    details = ErrorDetails("LOAD_FAILED", {"function": "digits"})
    double.fail("WakeFunction", grpc.StatusCode.FAILED_PRECONDITION, "ValueError: layer 3", details)
    double.instance_state = "FAILED"
    cli("deploy", str(folder), code=1)
    assert "2026 ERROR x ValueError" in cli.err
    assert [r.instance for r in double.requests if hasattr(r, "tail")] == ["i-1"]


def test_traffic_and_life(cli: Cli, folder: Path) -> None:
    for _ in range(2):
        cli("deploy", str(folder), "--force")
    assert "100 % to version 2" in cli("traffic", "digits")
    assert "90 % to version 1, 10 % to version 2" in cli("traffic", "digits", "1=90", "2=10%")
    assert "1 90 %, 2 10 %" in cli("functions")
    assert "default" in cli("functions")
    assert cli.json("traffic", "digits")["traffic"] == {"1": 90, "2": 10}
    assert "100 % to version 1" in cli("rollback", "digits")
    assert "100 % to version 2" in cli("traffic", "digits", "--newest")
    assert "digits READY, 1 ready instance" in cli("sleep", "digits")
    assert "digits READY" in cli("wake", "digits", "--version", "1")
    for wrong in (("1:90",), ("1=0",), ("1=101",), ("x=1",), ("1=50", "1=50"), ("1=100", "--newest")):
        cli("traffic", "digits", *wrong, code=2)


def test_flags_may_stand_before_the_command(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--address", address, "--json", "functions"]) == 0
    assert json.loads(capsys.readouterr().out) == {"functions": []}


def test_infer_prints_outputs_timings_and_trace(cli: Cli, folder: Path) -> None:
    cli("deploy", str(folder))
    out = cli("infer", "digits", "--input", "image=[1.5, 2]")
    assert "image FP32 [1, 2]" in out, "a missing first dimension is added"
    assert "[[1.5 2. ]]" in out
    assert "4.25 ms on node-1/gpu0" in out
    assert TRACE in out
    document = cli.json("infer", "digits", "--input", "image=[[1, 2]]")
    assert document["outputs"] == [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [[1.0, 2.0]]}]
    assert document["timings"]["swap_ms"] == 2.0
    assert document["trace_id"] == TRACE


def test_infer_reads_files(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli("deploy", str(folder))
    np.save(tmp_path / "x.npy", np.full((3, 2), 7, np.float32))
    (tmp_path / "x.json").write_text("[[8, 9]]")
    assert cli.json("infer", "digits", "--input", f"image=@{tmp_path / 'x.npy'}")["outputs"][0]["shape"] == [3, 2]
    assert cli.json("infer", "digits", "--input", f"image=@{tmp_path / 'x.json'}")["outputs"][0]["data"] == [[8, 9]]
    np.save(tmp_path / "evil.npy", np.array([{}]), allow_pickle=True)
    cli("infer", "digits", "--input", f"image=@{tmp_path / 'evil.npy'}", code=2)
    assert "allow_pickle=False" in cli.err
    cli("infer", "digits", "--input", f"image=@{tmp_path / 'none.npy'}", code=2)
    cli("infer", "digits", "--input", f"image=@{folder / 'function.py'}", code=2)


def signature(double: Any, *tensors: tuple[str, str, list[int]]) -> None:
    for name, datatype, shape in tensors:
        double.signature.inputs.add(name=name, datatype=datatype, shape=shape)


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    root = tmp_path / "bert"
    root.mkdir()
    (root / "config.json").write_text('{"architectures": ["BertModel"]}')
    (root / "model.safetensors").write_bytes(b"1")
    return root


def test_infer_draws_inputs(cli: Cli, double: Any, hugging_face: Path) -> None:
    signature(
        double,
        ("input_ids", "INT64", [-1, -1]),
        ("attention_mask", "INT64", [-1, -1]),
        ("flag", "BOOL", [2]),
        ("half", "BF16", [2, 2]),
        ("text", "BYTES", [-1]),
    )
    cli("deploy", str(hugging_face))
    arguments = ("infer", "bert", "--random", "--batch", "2", "--dim", "5", "--dim", "input_ids.1=4")
    outputs = {o["name"]: o for o in cli.json(*arguments)["outputs"]}
    assert outputs["input_ids"]["shape"] == [2, 4]
    assert outputs["attention_mask"]["data"] == [[1] * 5] * 2
    assert outputs["text"]["datatype"] == "BYTES"
    assert all(isinstance(text, str) for text in outputs["text"]["data"])
    assert cli.json(*arguments)["outputs"] == list(outputs.values()), "the same seed draws the same"
    assert cli.json(*arguments, "--seed", "1")["outputs"][0] != outputs["input_ids"]
    mixed = cli.json(*arguments, "--input", "input_ids=[9]")["outputs"]
    assert mixed[0]["data"] == [[9]]


def test_infer_takes_text_for_bytes(cli: Cli, double: Any, hugging_face: Path, tmp_path: Path) -> None:
    signature(double, ("text", "BYTES", [-1]))
    cli("deploy", str(hugging_face))
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    for given, want in (
        ("hello there", ["hello there"]),
        ("42", ["42"]),
        ('"quoted"', ["quoted"]),
        ('["a", "b"]', ["a", "b"]),
        (f"@{tmp_path / 'photo.jpg'}", ["\\xff\\xd8"]),
    ):
        assert cli.json("infer", "bert", "--input", f"text={given}")["outputs"][0]["data"] == want


def test_bytes_are_shown_as_text(cli: Cli, double: Any, hugging_face: Path) -> None:
    signature(double, ("text", "BYTES", [-1]))
    cli("deploy", str(hugging_face))
    assert "['hello there']" in cli("infer", "bert", "--input", "text=hello there")


def test_long_reasons_are_cut_for_people_only(cli: Cli, double: Any, folder: Path) -> None:
    cli("deploy", str(folder))
    double.reason = "because " * 200
    assert len(cli("describe", "digits")) < 4000
    assert cli.json("describe", "digits")["residency"][0]["reason"] == double.reason


def test_numbers_that_json_has_not(cli: Cli, double: Any, folder: Path) -> None:
    cli("deploy", str(folder))
    double.compute = lambda inputs: {"y": np.array([np.nan, np.inf, -np.inf, 1], np.float32)}
    document = cli.json("infer", "digits", "--random")
    assert document["outputs"][0]["data"] == ["NaN", "Infinity", "-Infinity", 1.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--input", "nothing=1"], "known: image"),
        (["--input", "image"], "not name=VALUE"),
        (["--input", "image=[1"], "not JSON"),
        (["--input", "image=[[1],[1,2]]"], "regular"),
        (["--input", "image=1", "--input", "image=2"], "twice"),
        ([], "--random"),
        (["--random", "--dim", "many"], "NAME.AXIS=N"),
        (["--random", "--batch", "0"], "--batch"),
        (["--random", "--batch", "999999999"], "elements"),
    ],
)
def test_wrong_usage(cli: Cli, folder: Path, arguments: list[str], says: str) -> None:
    cli("deploy", str(folder))
    cli("infer", "digits", *arguments, code=2)
    assert says in cli.err
    assert "next: see `rouse infer --help`" in cli.err


def test_failures_say_what_happened_and_what_next(cli: Cli, double: Any, folder: Path) -> None:
    cli("deploy", str(folder))
    details = ErrorDetails("FUNCTION_RAISED", {"function": "digits", "trace_id": TRACE})
    double.fail("Infer", grpc.StatusCode.INTERNAL, "ValueError: bad digit", details)
    assert cli("infer", "digits", "--random", code=1) == ""
    assert cli.err.splitlines() == [
        "error: ValueError: bad digit",
        "next: see `rouse logs digits` for the traceback",
        f"trace: rouse trace {TRACE}",
    ]
    double.fail("Infer", grpc.StatusCode.INTERNAL, "ValueError: bad digit", details)
    assert cli("infer", "digits", "--random", "--json", code=1) == ""
    assert json.loads(cli.err)["error"]["reason"] == "FUNCTION_RAISED"


def test_exit_codes(cli: Cli, double: Any, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli("describe", "nothing", code=4)
    cli("nonsense", code=2)
    cli("deploy", str(folder / "nowhere"), code=1)
    cli("deploy", str(folder), "--timeout", "0.000001", code=5)
    assert run(["functions", "--address", "127.0.0.1:1"]) == 3
    assert "next: start a mesh with `rouse up`" in capsys.readouterr().err
    assert run(["functions", "--address", "nonsense"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUSE_DEBUG", "1")
    with pytest.raises(Exception, match="does not exist"):
        run(["deploy", "nowhere"])


def test_describe(cli: Cli, folder: Path) -> None:
    cli("deploy", str(folder))
    out = cli("describe", "digits")
    for part in (
        "image FP32[?, 2]",
        "evicted from gpu0 for bert",
        "7 requests",
        "function.deployed",
        "depth=3",
        "plainly, in its instance",
        "0x500002000000: weights 32.0 MiB, state 512 MiB, scratch 512 MiB",
        "HOST",
    ):
        assert part in out
    document = cli.json("describe", "digits")
    assert list(document) == ["function", "versions", "instances", "residency", "usage", "events"]
    assert document["events"][0]["at"] == "2023-11-14T22:13:20+00:00"


def test_status_and_version(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    out = cli("status")
    for part in ("gateway", "UNREACHABLE", "gpu0 (host)", "110 MiB of 256 MiB", "digits-1"):
        assert part in out
    assert cli.json("status")["nodes"][0]["devices"][0]["free_bytes"] == 146 << 20
    assert cli.json("version")["mesh"] == "0.1.0"
    assert run(["version", "--address", "127.0.0.1:1"]) == 0
    assert "not reachable at 127.0.0.1:1" in capsys.readouterr().out


def test_delete(cli: Cli, double: Any, folder: Path) -> None:
    cli("deploy", str(folder))
    assert "is deleted" in cli("delete", "digits")
    assert not double.functions


def test_usage(cli: Cli) -> None:
    shown = cli("usage")
    assert "acme" in shown
    assert "not known" in shown
    assert "12.5 ms" in shown
    assert [row["function"] for row in cli.json("usage", "--by", "tenant")["usage"]] == ["", ""]
    assert "tenant" in cli("usage", "--by", "day", code=2) + cli.err


def test_a_ledger_is_exported_whole_with_all_its_digits(cli: Cli, tmp_path: Path) -> None:
    lines = [
        {
            "hour": f"2023-11-14T2{hour}:00:00+00:00", "tenant": "acme", "function": "digits", "requests": 1,
            "failures": 0, "device_ms": 0.1, "swap_ins": 0, "swap_ms": 0.0, "host_ms": 1000.0, "host_byte_s": 64.0,
            "billed_ms": 100.1,
        }
        for hour in (2, 3)
    ]  # fmt: skip
    jsonl, table = tmp_path / "bill.jsonl", tmp_path / "bill.csv"
    assert "2 rows" in cli("usage", "--until", "2023-11-15", "--export", str(jsonl))
    assert [json.loads(line) for line in jsonl.read_text().splitlines()] == lines
    assert cli.json("usage", "--export", str(table), "--until", "2023-11-15T01:00+01:00")["rows"] == 2
    with table.open(newline="") as file:
        assert list(csv.DictReader(file)) == [{key: str(value) for key, value in line.items()} for line in lines]
    assert sorted(tmp_path.iterdir()) == [table, jsonl], "nothing half written stays"
    shown = cli("usage", "--by", "hour", "--since", "2023-11-15")
    assert "2023-11-15 00:00" in shown, shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--export", "bill.xls"], ".csv or .jsonl"),
        (["--export", "bill.csv", "--by", "tenant"], "leave out --by"),
        (["--since", "yesterday"], "2026-11-01"),
        (["--since", "2026-11-01T10:30"], "whole hour"),
        (["--since", "2026-11-02", "--until", "2026-11-01"], "not before"),
    ],
)
def test_a_bad_period_or_file_is_refused(cli: Cli, arguments: list[str], says: str) -> None:
    cli("usage", *arguments, code=2)
    assert says in " ".join(cli.err.split())


def test_logs(cli: Cli, double: Any) -> None:
    double.lines = [f"2026-11-20T12:00:00.123Z INFO    gateway trace=- {'x' * 200} {n}" for n in range(3)]
    assert cli("logs", "--tail", "2").splitlines() == double.lines[1:], "lines are neither wrapped nor cut"
    rows = [json.loads(row) for row in cli("logs", "--json").splitlines()]
    assert rows == [{"line": line} for line in double.lines]


def test_trace_draws_a_waterfall(cli: Cli, double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    double.add_trace(TRACE)
    lines = cli("trace", TRACE).splitlines()
    assert "100.00 ms, 7 spans, 4 services" in lines[0]
    assert all(len(line) <= 100 for line in lines)
    names = [line.split("·")[0].rstrip() for line in lines[1:8]]
    assert names == [
        "gateway", "  node-router", "    node-router", "    gpu-server", "      gpu-server", "    executor",
        "      executor",
    ]  # fmt: skip
    assert lines[5].rstrip().endswith("53.00 ms")
    assert "gpu-server · swap: bert was used last" in lines[8]
    document = cli.json("trace", TRACE)
    assert document["spans"][4]["name"] == "swap"
    cli("trace", "xyz", code=2)
    cli("trace", "00" * 16, code=4)


def test_trace_with_odd_parents_ends(cli: Cli, double: Any) -> None:
    """Parents in a circle, and a child that its parent starts after: drawn once each."""
    spans = double.add_trace(TRACE)
    spans[1].parent_span_id = "07"
    spans[0].start_unix_nanos = spans[0].end_unix_nanos + 5
    out = cli("trace", TRACE)
    assert out.count("node-router · Infer") == 1
    assert out.count("·") >= 7


def test_up_without_the_mesh_packages(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["up", "--data-dir", "x"]) == 1


def test_up_hands_every_flag_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, argv: started.append(argv))
    assert run(["up", "--device", "host:a=1GiB", "--json", "--help", "-x"]) == 0
    assert started == [
        [sys.executable, "-m", "rouse_embedded", "up", "--device", "host:a=1GiB", "--json", "--help", "-x"]
    ]


def test_interrupt_ends_a_call_at_once(address: str, double: Any, folder: Path) -> None:
    """Ctrl-C while following logs: exit code 130, no traceback, and the stream is closed."""
    double.lines = ["first"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rouse.cli.main", "logs", "-f", "--address", address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in a shell's background it is ignored
    )  # fmt: skip
    assert process.stdout is not None
    if process.stdout.readline() != "first\n":
        pytest.fail(f"no line came: {process.communicate(timeout=20)}")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert double.follow_ended.wait(10)


def test_reader_that_leaves_is_no_error(address: str, double: Any) -> None:
    double.lines = ["y" * 1000] * 2000
    command = f"{sys.executable} -m rouse.cli.main logs --tail 2000 --address {address} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "y" * 1000 + "\n"
    assert done.stderr == ""


def test_every_command_has_help(cli: Cli) -> None:
    out = cli("--help")
    for name in (
        "up", "status", "deploy", "functions", "describe", "infer", "logs", "trace", "delete", "version",
    ):  # fmt: skip
        assert name in out

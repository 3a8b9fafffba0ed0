"""`rouse dev` as a process of its own: loading, calling, errors with their place, and loading again."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rouse_testkit import models
from rouse_testkit.instances import X, Y

COMMAND = [sys.executable, "-m", "rouse.cli.main", "dev"]
PATIENCE_S = 60.0


def write(folder: Path, body: str, settings: str = "") -> Path:
    code = f"""
        import os, time
        class Function:
            def load(self, context):
                self.factor = float(context.options.get("factor", "2"))
            def predict(self, inputs, request):
                {body}
    """
    models.write_function(folder, "f", code, X, Y, settings=settings)
    return folder


def once(folder: Path, *flags: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """What `rouse dev --once --json` printed as JSON, and its standard error."""
    done = subprocess.run(
        [*COMMAND, str(folder), "--once", "--json", *flags], capture_output=True, text=True, check=False,
        timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_function_is_loaded_and_called(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", 'print("called", dict(request.parameters)); return {"y": inputs["x"] * np(self)}')
    (folder / "helper.py").write_text("")
    text = (folder / "function.py").read_text()
    (folder / "function.py").write_text(text.replace("np(self)", "type(inputs['x'][0])(self.factor)"))
    loaded, answer = once(folder, "--input", "x=[1,2]", "--option", "factor=3", "--parameter", "top=5")[0]
    assert loaded["loaded"] == "f"
    assert loaded["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2], "data": [3.0, 6.0]}]
    assert answer["timings"]["device_ms"] > 0
    assert "called {'top': 5}" in once(folder, "--random", "--parameter", "top=5")[1]


def test_a_generator_gives_all_its_responses(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", 'yield {"y": [1]}; yield {"y": [2]}', "decoupled = true")
    _, first, second, last = once(folder, "--random")[0]
    assert [answer["outputs"][0]["data"] for answer in (first, second)] == [[1.0], [2.0]]
    assert last["outputs"] == []
    assert last["timings"]["device_ms"] > 0


@pytest.mark.parametrize(
    ("body", "flags", "says"),
    [
        ('raise ValueError("no")', ["--random"], "ValueError: no (at function.py:7)"),
        ('return {"y": "text"}', ["--random"], "predict() returned"),
        ('return {"z": [1]}', ["--random"], "'z', which is not an output"),
        ("os.abort()", ["--random"], "its process died of SIGABRT"),
        ("while True: pass", ["--random", "--timeout", "0.5"], "did not answer within 0.5 s and was stopped"),
        ("return {}", ["--input", "z=1"], "there is no input 'z'"),
        ("return {}", [], ""),
    ],
)
def test_what_fails_says_what_and_where(tmp_path: Path, body: str, flags: list[str], says: str) -> None:
    _, error = once(write(tmp_path / "f", body), *flags, code=1 if says else 0)
    assert says in error


def test_what_does_not_load_says_what_and_where(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", "return {")
    assert "SyntaxError" in once(folder, code=1)[1]
    (folder / "weights.bin").write_bytes(b"")
    assert "pickle" in once(folder, code=1)[1]
    assert "does not exist" in once(tmp_path / "none", code=1)[1]


def test_every_format_runs(tmp_path: Path) -> None:
    models.write_linear(tmp_path / "linear", "linear", 8, 1)
    loaded, answer = once(tmp_path / "linear", "--input", "x=[[1,1,1,1,1,1,1,1]]")[0]
    want = models.linear_weight(8, 1).sum(1).tolist()
    assert answer["outputs"][0]["data"][0] == pytest.approx(want, rel=1e-5, abs=1e-5)
    models.write_exported_mlp(tmp_path / "mlp")
    loaded, answer = once(tmp_path / "mlp", "--random", "--batch", "3")[0]
    assert loaded["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 4]}]
    assert answer["outputs"][0]["shape"] == [3, 4]
    models.write_resnet(tmp_path / "resnet", depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 8, 8], embedding_size=8)
    loaded, answer = once(tmp_path / "resnet", "--random", "--dim", "32")[0]
    assert [tensor["name"] for tensor in loaded["inputs"]] == ["pixel_values"]
    assert answer["outputs"][0]["shape"] == [1, 10]


class Running:
    """`rouse dev` that watches its folder."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue(maxsize=10_000)
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip())

    def until(self, text: str) -> None:
        """Waits for a line with `text` among those that were not read yet."""
        ends = time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            line = self._lines.get(timeout=PATIENCE_S)
            self.seen.append(line)
            if text in line:
                return
        raise AssertionError(f"no line with {text!r} in {self.seen}")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)


@contextmanager
def watching(folder: Path, *flags: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*COMMAND, str(folder), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "COLUMNS": "200", "TMPDIR": str(folder.parent)},
    )  # fmt: skip
    running = Running(process)
    try:
        yield running
    finally:
        running.stop()
        assert [path.name for path in folder.parent.iterdir()] == [folder.name], "it left files behind"
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def test_a_changed_file_is_loaded_again_and_lines_call_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", 'return {"y": inputs["x"] + 1}')
    with watching(folder) as running:
        running.until("loaded in")
        running.until("watching")
        running.say("x=[1,2]\nx=[5]")
        running.until("[2. 3.]")
        running.until("[6.]")
        write(folder, 'return {"y": inputs["x"] + 10}')
        running.until("changed, loading again")
        running.until("[15.]")
        write(folder, 'raise KeyError("gone")')
        running.until("missing key 'gone' (at function.py:7)")
        write(folder, "return {")
        running.until("it did not load: SyntaxError")
        running.say("")
        running.until("it is not loaded")
        write(folder, 'return {"y": inputs["x"] * 100}')
        running.until("[500.]")
        running.say("'")
        running.until("that line cannot be read")


def test_a_process_that_dies_is_started_again_at_the_next_change(tmp_path: Path) -> None:
    folder = write(tmp_path / "f", "os._exit(3)")
    with watching(folder, "--random", "--batch", "1") as running:
        running.until("its process ended with code 3")
        write(folder, 'return {"y": [1]}')
        running.until("[1.]")

"""Where scenarios compute: what `--device` takes, and that it reaches the scenario and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rouse_loadtest import __main__ as bench
from rouse_loadtest.place import HOST, Place, at, lacking
from rouse_loadtest.report import Measure, read
from rouse_loadtest.scenario import Run, Scenario
from rouse_loadtest.scenarios import SCENARIOS

FIGURE = Measure("figure", [1.0, 2.0, 4.0], "ratio", 3.0, note="beside nothing")


def test_a_name_says_how_each_that_computes_there_calls_it() -> None:
    assert at("host:0") == HOST
    assert (HOST.on_host, HOST.gpu, HOST.copied_to) == (True, None, True)
    other = at("host:1")
    assert (other.executor, other.session, other.torch, other.on_host) == ("host:1", HOST.session, "cpu", True)
    gpu = at("cuda:3")
    assert (gpu.executor, gpu.session.device, gpu.torch) == ("cuda:3", "cuda:3", "cuda:3")
    assert (gpu.on_host, gpu.gpu, gpu.copied_to) == (False, 3, True)


@pytest.mark.parametrize(
    "name", ["", "cuda", "cuda:", "cuda:-1", "cuda:0 ", "cuda:100", "gpu:0", "host", "/dev/nvidia0"]
)
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no device: it is host:N, cuda:N"):
        at(name)


def test_a_gpu_that_is_not_there_is_told() -> None:
    assert lacking(HOST) == ""
    assert "and not on cuda:99" in lacking(at("cuda:99"))


def told(scenario: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["make bench", scenario, *arguments])
    return bench.main()


def test_scenarios_that_compute_on_the_host_say_so_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {name for name, each in SCENARIOS.items() if each.anywhere} == {"redirect", "swap", "remoting"}
    assert told("overhead", "--device", "cuda:0", monkeypatch=monkeypatch) == 2
    assert "'overhead' computes on the host only, and not on cuda:0" in capsys.readouterr().err
    assert told("swap", "--device", "cuda:99", monkeypatch=monkeypatch) == 2
    assert "and not on cuda:99" in capsys.readouterr().err
    assert told("swap", "--device", "gpu", monkeypatch=monkeypatch) == 2
    assert "'gpu' is no device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "place", "command"),
    [
        ([], HOST, "make bench SCENARIO=mine</td>"),
        (["--quick"], HOST, "make bench SCENARIO=mine ARGS=--quick</td>"),
        (["--device", "host:1", "--quick"], at("host:1"), "ARGS=&#x27;--device host:1 --quick&#x27;</td>"),
    ],
)
def test_the_place_reaches_the_scenario_the_result_and_the_page(
    arguments: list[str], place: Place, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def measure(run: Run) -> Sequence[Measure]:
        places.append(run.place)
        return [FIGURE]

    monkeypatch.setattr(bench, "SCENARIOS", {"mine": Scenario("mine", "title", 0.1, measure, anywhere=True)})
    result = tmp_path / "result.json"
    assert told("mine", *arguments, f"--json={result}", f"--plots={tmp_path}", monkeypatch=monkeypatch) == 0
    assert places == [place]
    measures, where = read(result)
    assert (measures, where["device"]) == ([FIGURE], place.name)
    assert command in (tmp_path / "mine.html").read_text()

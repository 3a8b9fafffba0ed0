from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rouse_runtime.context import Context, bind
from rouse_runtime.failures import LoadError
from rouse_runtime.weights import WeightsRange


def context(folder: Path) -> Context:
    return Context(folder, {"k": "v"}, "cpu", WeightsRange(0), [])


def test_path_finds_files_and_folders_of_the_artefact(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "labels.txt").write_text("a")
    assert context(tmp_path).path("data/labels.txt").read_text() == "a"
    assert context(tmp_path).path("data").is_dir()
    with pytest.raises(FileNotFoundError, match="'nothing'"):
        context(tmp_path).path("nothing")


@given(st.lists(st.sampled_from(["..", ".", "a", "/", "\0", "etc"]), max_size=6))
def test_no_path_leads_out(parts: list[str]) -> None:
    folder = Path(__file__).parent
    try:
        found = context(folder).path("/".join(parts))
    except (ValueError, FileNotFoundError):
        return
    assert found.resolve().is_relative_to(folder.resolve())


def test_options_cannot_be_changed(tmp_path: Path) -> None:
    options = context(tmp_path).options
    assert dict(options) == {"k": "v"}
    with pytest.raises(TypeError):
        options["k"] = "w"  # type: ignore[index]


def test_bind_after_loading_is_refused(tmp_path: Path) -> None:
    made = context(tmp_path)
    made.close()
    with pytest.raises(RuntimeError, match=r"load\(\) only"):
        made.bind(torch.nn.Linear(1, 1), "x.safetensors")


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.arange(3), persistent=False)


def test_bind_copies_nothing_and_knows_shared_parameters() -> None:
    values = {name: value.clone() for name, value in Tied().state_dict().items() if name != "head.weight"}
    module = Tied().train()
    report = bind(module, values)
    assert (report.missing, report.unexpected) == ((), ())
    for name, value in module.state_dict().items():
        assert value.data_ptr() == values.get(name, values["embed.weight"]).data_ptr()
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert module.get_buffer("steps").tolist() == [0, 1, 2]


def test_bind_reports_what_is_on_one_side_only() -> None:
    report = bind(torch.nn.Linear(2, 2), {"weight": torch.ones(2, 2), "other": torch.ones(1)})
    assert (report.missing, report.unexpected) == (("bias",), ("other",))


def test_values_that_stay_on_the_meta_device_are_refused() -> None:
    with torch.device("meta"):
        module = Tied()
    values = {name: value.clone() for name, value in Tied().state_dict().items()}
    with pytest.raises(LoadError, match="steps"):
        bind(module, values)


def test_integer_weights_are_bound() -> None:
    module = torch.nn.Linear(2, 2, bias=False)
    bind(module, {"weight": torch.ones(2, 2, dtype=torch.int8)})
    assert module.weight.dtype is torch.int8

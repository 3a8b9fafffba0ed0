"""What materialised state depends on."""

from __future__ import annotations

from typing import Any

import pytest

from rouse_contracts import states
from rouse_contracts.functions import FunctionSpec, Scaling, SecretReference
from rouse_contracts.repository import MadeWith, State, StateKind, WeightsLayout, WeightTensor


def layout(**fields: Any) -> WeightsLayout:
    tensor: dict[str, Any] = {
        "name": "a", "file": "m.safetensors", "dtype": "F32", "shape": [2, 3], "image_offset_bytes": 64,
        "size_bytes": 24,
    } | fields  # fmt: skip
    return WeightsLayout(tensors=[WeightTensor(**tensor)], image_bytes=128)


def test_a_layout_is_where_tensors_stand_in_the_image_whatever_their_place_in_files() -> None:
    digest = states.layout_digest(layout())
    assert states.layout_digest(layout(file_offset_bytes=7)) == digest
    for change in ({"name": "b"}, {"dtype": "I32"}, {"shape": [3, 2]}, {"image_offset_bytes": 0}, {"size_bytes": 23}):
        assert states.layout_digest(layout(**change)) != digest
    assert states.layout_digest(WeightsLayout(image_bytes=128)) != digest


def test_a_program_is_what_the_spec_tells_the_code() -> None:
    spec = FunctionSpec(name="f", handler="m:C", options={"a": "1", "b": "2"})
    digest = states.program_digest(spec)
    same = FunctionSpec(name="g", handler="m:C", options={"b": "2", "a": "1"}, scaling=Scaling(min_instances=1))
    assert states.program_digest(same) == digest
    for other in (
        FunctionSpec(handler="m:D", options={"a": "1", "b": "2"}),
        FunctionSpec(handler="m:C", options={"a": "1"}),
        FunctionSpec(handler="m:C", options={"a": "1", "b": "2"}, environment={"X": "1"}),
        FunctionSpec(handler="m:C", options={"a": "1", "b": "2"}, secrets=[SecretReference(variable="X", secret="s")]),
    ):
        assert states.program_digest(other) != digest


def test_what_is_empty_matches_everything() -> None:
    made = MadeWith(torch_version="2.13.0", device_type="host", base=5)
    assert states.matches(made, MadeWith())
    assert states.matches(made, MadeWith(device_type="host", base=5))
    assert not states.matches(made, MadeWith(device_type="cuda"))
    assert not states.matches(made, MadeWith(program_digest="x"))


def test_builds_of_one_version_of_pytorch_are_one() -> None:
    assert states.torch_version("2.13.0+cpu") == states.torch_version("2.13.0") == "2.13.0"


def test_identity_is_all_but_the_bytes() -> None:
    one = State(kind=StateKind.STATE_KIND_TAPE, name="x", made_with=MadeWith(base=1), digest="a", size_bytes=1)
    same = State(kind=StateKind.STATE_KIND_TAPE, name="x", made_with=MadeWith(base=1), digest="b", size_bytes=2)
    assert states.identity(one) == states.identity(same)
    assert states.file_name(one) == f"tape-{states.identity(one)}-a"
    for change in (
        State(kind=StateKind.STATE_KIND_GRAPH, name="x", made_with=MadeWith(base=1)),
        State(kind=StateKind.STATE_KIND_TAPE, name="y", made_with=MadeWith(base=1)),
        State(kind=StateKind.STATE_KIND_TAPE, name="x", made_with=MadeWith(base=2)),
    ):
        assert states.identity(change) != states.identity(one)


def test_a_bad_state_is_named() -> None:
    with pytest.raises(states.BadState, match="kind is 0"):
        states.check(State())

"""Names of tapes: what they answer, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_contracts.states import NAME
from rouse_contracts.tapes import DATATYPES, Answers, Input, key, name_of, parse

TEXTS = st.text(min_size=1, max_size=12)
INPUTS = st.builds(
    Input, TEXTS, st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
)
ANSWERS = st.builds(
    Answers,
    st.lists(INPUTS, max_size=3, unique_by=lambda entry: entry.name).map(tuple),
    st.lists(TEXTS, min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(0, 7),
)


@given(ANSWERS)
def test_a_name_says_what_the_tape_answers(answers: Answers) -> None:
    name = name_of(answers)
    if name is None:
        return
    assert NAME.fullmatch(name)
    assert parse(name) == answers


@given(st.lists(INPUTS, max_size=4, unique_by=lambda entry: entry.name), st.randoms())
def test_the_order_of_inputs_tells_no_requests_apart(inputs: list[Input], random: object) -> None:
    other = list(inputs)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert key(other) == key(inputs)
    for entry in inputs:
        changed = Input(entry.name, entry.datatype, (*entry.shape, 1))
        assert key([changed if each is entry else each for each in inputs]) != key(inputs)


@given(st.text(max_size=80))
def test_whatever_a_repository_says_is_a_tape_or_none(text: str) -> None:
    found = parse(text)
    assert found is None or parse(name_of(found) or text) == found


@pytest.mark.parametrize(
    "name",
    ["", "x:FP32:2;", "x:FP32:2;>#0", "x:BYTES:2;>y;#0", "x:FP32:2;x:FP32:2;>y;#0", "x:FP32:2;>y;y;#0",
     "x:FP32:,;>y;#0 ", "x:FP32:2;>y;#1000", "x:FP32:-2;>y;#0"],
)  # fmt: skip
def test_what_is_no_name_of_a_tape(name: str) -> None:
    assert parse(name) is None


def test_a_name_that_would_be_too_long_is_none() -> None:
    assert name_of(Answers((Input("x" * 300, "FP32", (1,)),), ("y",))) is None

"""Parameters of requests, whichever transport they come by."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_contracts import functions
from rouse_gateway.oip import parameters
from rouse_gateway.oip.parameters import check_options, read

names = st.sampled_from(
    ["timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "idempotency_key", "triton_own", "own"]
) | st.text(st.characters(), max_size=4)
values = st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4) | st.integers(0, 9)


@given(st.dictionaries(names, values, max_size=70))
def test_any_parameters_are_read_or_refused(given_: dict[str, Any]) -> None:
    try:
        found = read("f", given_)
    except InvalidArgument as error:
        refusal: InvalidArgument | None = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.reason in ("BAD_PARAMETER", "BAD_TIMEOUT")
        assert refusal.message.encode()
        return
    assert found.timeout_s is None or 0 < found.timeout_s <= parameters.MAX_TIMEOUT_S
    if found.options is not None:
        check_options("f", functions.RequestOptions.FromString(found.options.SerializeToString()))


def test_they_mean_what_the_protocol_says() -> None:
    found = read(
        "f",
        {
            "timeout": 1_500_000, "priority": 2, "sequence_id": 7, "sequence_end": True, "idempotency_key": "k",
            "triton_enable_empty_final_response": True, "own": "text", "number": 1 << 63, "binary_data_output": True,
        },
    )  # fmt: skip
    assert (found.timeout_s, found.idempotency_key, found.empty_final) == (1.5, "k", True)
    options = functions.RequestOptions(priority=2, sequence=functions.Sequence(id="7", end=True))
    options.parameters["own"].string_value = "text"
    options.parameters["number"].uint64_value = 1 << 63
    assert found.options == options
    assert read("f", {"timeout": 0, "priority": 0, "sequence_id": ""}) == parameters.NONE
    assert read("f", {"own": 1.5}).options.parameters["own"].double_value == 1.5  # type: ignore[union-attr]


BAD: list[dict[str, Any]] = [
    {"priority": -1}, {"priority": True}, {"priority": 1 << 40}, {"sequence_id": -1}, {"sequence_id": 1.5},
    {"sequence_id": "s" * 300}, {"sequence_start": True}, {"sequence_start": "yes", "sequence_id": 1},
    {"idempotency_key": 5}, {"idempotency_key": "k" * 300}, {"own": "t" * 20_000}, {"own": 1 << 64}, {"own": "\ud800"},
    {"\ud800": 1}, {"sequence_id": "\ud800"}, {str(number): 1 for number in range(65)},
]  # fmt: skip


@pytest.mark.parametrize("given_", BAD)
def test_what_they_cannot_be_is_refused(given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read("f", given_)
    assert caught.value.reason == "BAD_PARAMETER"


@pytest.mark.parametrize("given_", [{"timeout": -1}, {"timeout": True}, {"timeout": 0.5}, {"timeout": "soon"}])
def test_a_timeout_is_whole_microseconds(given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read("f", given_)
    assert caught.value.reason == "BAD_TIMEOUT"

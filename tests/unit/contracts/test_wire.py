"""Splitting and joining messages by hand agrees with protobuf, and never trusts a length."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rouse_contracts import inference, node, wire

INPUTS = node.InferRequest.INPUTS_FIELD_NUMBER
REQUESTS = st.builds(
    node.InferRequest,
    function=st.text(),
    version_id=st.text(),
    request_id=st.text(),
    inputs=st.binary(max_size=300),
    output_names=st.lists(st.text(), max_size=4),
    queue_capacity=st.integers(0, 2**32 - 1),
)


@given(REQUESTS)
def test_splitting_takes_out_one_field_and_joining_puts_it_back(request: node.InferRequest) -> None:
    rest, inputs = wire.split_bytes(request.SerializeToString(), INPUTS)
    assert bytes(inputs) == request.inputs
    head = node.InferRequest.FromString(rest)
    assert head.inputs == b""
    assert node.InferRequest.FromString(b"".join(wire.joined(rest, INPUTS, inputs))) == request


@given(REQUESTS, st.binary(max_size=50))
def test_the_last_of_several_values_counts_as_in_protobuf(request: node.InferRequest, more: bytes) -> None:
    twice = request.SerializeToString() + node.InferRequest(inputs=b"x" + more).SerializeToString()
    rest, inputs = wire.split_bytes(twice, INPUTS)
    assert bytes(inputs) == node.InferRequest.FromString(twice).inputs == b"x" + more
    assert node.InferRequest.FromString(rest).inputs == b""


@given(st.binary(max_size=200))
def test_what_protobuf_refuses_is_refused_and_nothing_is_read_past_the_end(data: bytes) -> None:
    try:
        rest, inputs = wire.split_bytes(data, INPUTS)
    except DecodeError:
        return
    assert len(rest) + len(inputs) <= len(data)


@given(REQUESTS, st.data())
def test_a_message_that_is_cut_off_is_refused(request: node.InferRequest, data: st.DataObject) -> None:
    whole = request.SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        expected = node.InferRequest.FromString(cut)
    except DecodeError:
        with pytest.raises(DecodeError):
            node.InferRequest.FromString(wire.split_bytes(cut, INPUTS)[0])
    else:
        assert bytes(wire.split_bytes(cut, INPUTS)[1]) == expected.inputs


@given(st.integers(0, 2**64 - 1))
def test_numbers_travel_as_in_protobuf(value: int) -> None:
    encoded = wire.varint(value)
    assert wire.read_varint(encoded, 0, len(encoded)) == (value, len(encoded))


def test_an_endless_number_is_refused() -> None:
    with pytest.raises(DecodeError, match="longer than 10 bytes"):
        wire.read_varint(b"\xff" * 20, 0, 20)


def test_splitting_copies_nothing_of_the_field() -> None:
    message = node.InferRequest(function="f", inputs=b"x" * 1000).SerializeToString()
    _, inputs = wire.split_bytes(message, INPUTS)
    assert isinstance(inputs, memoryview)
    assert inputs.obj is message


@given(st.lists(st.binary(max_size=50), max_size=5), st.text(max_size=12), st.integers(0, 5))
def test_raw_contents_are_views_and_the_rest_stays(raw: list[bytes], name: str, cut: int) -> None:
    first = inference.ModelInferRequest(raw_input_contents=raw[:cut]).SerializeToString()
    rest = inference.ModelInferRequest(model_name=name, id="7", raw_input_contents=raw[cut:]).SerializeToString()
    data = first + rest  # fields may come in any order
    head, values = wire.split(data, 7)
    assert [bytes(value) for value in values] == raw
    assert all(value.obj is data for value in values)
    message = inference.ModelInferRequest.FromString(bytes(head))
    assert (message.model_name, message.id, list(message.raw_input_contents)) == (name, "7", [])


@given(st.integers(0, 2**64 - 1))
def test_numbers_survive(value: int) -> None:
    encoded = wire.varint(value)
    assert wire.read_varint(encoded, 0, len(encoded)) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"\x0b", b"\x07", b"\x02\x00", b"\x0a", b"\x0a\x05abc", b"\x09\x00", b"\xff" * 11])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        wire.split(data, 1)

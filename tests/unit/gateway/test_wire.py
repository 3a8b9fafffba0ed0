"""Messages taken apart and put together by hand agree with the generated classes, whatever the bytes."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from rouse_contracts import node
from rouse_contracts.functions import Tensor, TensorBatch
from rouse_gateway import wire
from rouse_gateway.wire import TensorView

names = st.text(max_size=12)
tensors = st.builds(
    TensorView,
    name=names,
    datatype=names,
    shape=st.lists(st.integers(-1, 2**62), max_size=4).map(tuple),
    data=st.binary(max_size=300),
)
batches = st.lists(tensors, max_size=5)


def generated(views: list[TensorView]) -> TensorBatch:
    return TensorBatch(
        tensors=[Tensor(name=v.name, datatype=v.datatype, shape=v.shape, data=bytes(v.data)) for v in views]
    )


def plain(views: list[TensorView]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(v.name, v.datatype, v.shape, bytes(v.data)) for v in views]


@given(batches)
def test_a_batch_put_together_by_hand_is_the_generated_one(views: list[TensorView]) -> None:
    assert TensorBatch.FromString(b"".join(wire.tensor_parts(views, wire.BATCH_TENSORS))) == generated(views)


@given(batches)
def test_a_generated_batch_is_taken_apart_unchanged(views: list[TensorView]) -> None:
    assert plain(wire.parse_batch(generated(views).SerializeToString())) == plain(views)


@given(batches, names)
def test_a_batch_within_a_request_reaches_a_node(views: list[TensorView], function: str) -> None:
    head = node.InferRequest(function=function, queue_capacity=7).SerializeToString()
    parts = wire.bytes_field(node.InferRequest.INPUTS_FIELD_NUMBER, wire.tensor_parts(views, wire.BATCH_TENSORS))
    request = node.InferRequest.FromString(b"".join([head, *parts]))
    assert (request.function, request.queue_capacity) == (function, 7)
    assert TensorBatch.FromString(request.inputs) == generated(views)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_batch_for_both_or_refused_with_a_decode_error(data: bytes) -> None:
    try:
        views = wire.parse_batch(data)
    except DecodeError:
        return
    # What we read, the generated class reads the same, unless it is stricter.
    try:
        batch = TensorBatch.FromString(data)
    except DecodeError:
        return
    assert plain(views) == [(t.name, t.datatype, tuple(t.shape), t.data) for t in batch.tensors]


@given(batches.filter(bool), st.data())
def test_what_is_cut_off_is_refused_or_shorter(views: list[TensorView], data: st.DataObject) -> None:
    whole = generated(views).SerializeToString()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))] if whole else b""
    try:
        found = wire.parse_batch(cut)
    except DecodeError:
        return
    assert plain(found) == plain(views)[: len(found)]


def test_the_last_of_two_values_of_one_field_counts_as_in_protobuf() -> None:
    data = Tensor(name="a", data=b"1").SerializeToString() + Tensor(name="b", data=b"22").SerializeToString()
    view = wire.parse_tensor(data)
    message = Tensor.FromString(data)
    assert (view.name, bytes(view.data)) == (message.name, message.data) == ("b", b"22")

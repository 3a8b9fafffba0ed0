"""The classification extension."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_contracts import functions
from rouse_contracts.arrays import DATATYPES, to_array
from rouse_contracts.cluster import RoutingTable
from rouse_gateway.oip.classification import classify
from rouse_gateway.state import Version, index
from rouse_gateway.wire import TensorView


def version(*, rows: int = 0, labels: str = "") -> Version:
    spec = functions.FunctionSpec(name="f", batching=functions.Batching(max_batch_size=rows))
    if labels:
        spec.options["labels.y"] = labels
    table = RoutingTable(generation=1)
    table.functions.add(
        name="f", versions=[functions.FunctionVersion(version_id="v", version=1, spec=spec)], active_version_id="v"
    )
    return index(table).version("f", "")


def view(array: np.ndarray) -> TensorView:
    return TensorView("y", DATATYPES[array.dtype], array.shape, array.tobytes())


async def texts(version: Version, tensor: TensorView, classes: int) -> list:
    found = await classify(version, tensor, classes)
    whole = functions.Tensor(name="y", datatype=found.datatype, shape=found.shape, data=bytes(found.data))
    return np.vectorize(bytes.decode, otypes=[object])(to_array(whole)).tolist()


async def test_the_largest_come_first_with_their_places_and_labels() -> None:
    scores = view(np.array([0.1, 0.7, 0.2], np.float32))
    assert await texts(version(labels="cat, dog"), scores, 2) == ["0.700000:1:dog", "0.200000:2"]
    assert await texts(version(), scores, 9) == ["0.700000:1", "0.200000:2", "0.100000:0"]


async def test_each_row_of_a_batch_has_its_own() -> None:
    rows = view(np.array([[1, 5, 3], [9, 2, 4]], np.int32))
    assert await texts(version(rows=8), rows, 2) == [["5:1", "3:2"], ["9:0", "4:2"]]
    assert await texts(version(), rows, 2) == ["9:3", "5:1"]


@pytest.mark.parametrize("dtype", sorted({str(dtype) for dtype in DATATYPES} - {"bool"}))
async def test_every_datatype_with_an_order_is_served(dtype: str) -> None:
    assert [text.partition(":")[2] for text in await texts(version(), view(np.array([1, 3, 2], dtype)), 2)] == [
        "1",
        "2",
    ]


async def test_bf16_is_read_as_what_it_stands_for() -> None:
    wide = np.array([1.5, -2.0, 3.0], "<f4").view("<u4")
    tensor = TensorView("y", "BF16", (3,), (wide >> 16).astype("<u2").tobytes())
    assert await texts(version(), tensor, 1) == ["3.000000:2"]


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
async def test_what_has_no_order_is_refused(datatype: str) -> None:
    with pytest.raises(InvalidArgument, match=datatype):
        await classify(
            version(), TensorView("y", datatype, (1,), b"\x00\x00\x00\x00"[: 4 if datatype == "BYTES" else 1]), 1
        )


@given(st.lists(st.floats(width=32), max_size=30), st.integers(1, 40))
async def test_any_values_are_ranked_as_numpy_ranks_them(values: list[float], classes: int) -> None:
    array = np.array(values, np.float32)
    got = [int(text.split(":")[1]) for text in await texts(version(), view(array), classes)]
    ranked = np.where(np.isnan(array), -np.inf, array)
    assert got == sorted(range(len(values)), key=lambda i: (-ranked[i], i))[:classes]


async def test_an_empty_batch_has_no_classes() -> None:
    found = await classify(version(rows=8), view(np.zeros((0, 3), np.float32)), 2)
    assert (found.shape, bytes(found.data)) == ((0, 0), b"")

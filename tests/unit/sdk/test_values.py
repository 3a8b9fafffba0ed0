"""Tensors, addresses, errors, and what the package exports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rouse
from rouse import errors
from rouse.address import DEFAULT, resolve
from rouse.tensors import encode
from rouse_contracts.arrays import to_array

EXPORTS = {
    "AddressRange", "AlreadyExists", "AsyncClient", "Batching", "Cancelled", "Client", "DataLoss", "DeadlineExceeded",
    "Deployment", "Description", "Device", "Event", "FailedPrecondition", "Function", "Instance", "Internal",
    "InvalidArgument", "Key", "Limits", "NewKey", "Node", "NotFound", "Objective", "Package", "PackageError",
    "PermissionDenied", "Progress", "Residency", "ResourceExhausted", "Resources", "Result", "RouseError", "Scaling",
    "Secret", "Service", "Span", "Status", "Tenant", "TensorSpec", "Timings", "Unauthenticated", "Unavailable",
    "Unimplemented", "Unreachable", "Usage", "UsageRow", "Version", "__version__", "read_package",
}  # fmt: skip


def spec(datatype: str) -> rouse.TensorSpec:
    return rouse.TensorSpec("x", datatype, (-1,))


def test_exports_are_pinned() -> None:
    assert set(rouse.__all__) == EXPORTS
    assert all(hasattr(rouse, name) for name in EXPORTS)
    assert (Path(rouse.__file__).parent / "py.typed").exists()


def test_every_status_code_has_its_class() -> None:
    mapped = set(errors._CLASSES)
    assert mapped <= {code.name for code in grpc.StatusCode}
    assert {code.name for code in grpc.StatusCode} - mapped == {"OK", "UNKNOWN", "ABORTED", "OUT_OF_RANGE"}


def test_hints_fill_in_names_and_never_fail() -> None:
    assert "rouse logs bert" in rouse.Internal("x", reason="FUNCTION_RAISED", metadata={"function": "bert"}).hint
    assert "FUNCTION" in rouse.Internal("x", reason="FUNCTION_RAISED").hint
    for reason in errors._HINTS:
        assert rouse.RouseError("x", reason=reason).hint
    assert rouse.RouseError("x", reason="NEVER_HEARD_OF").hint


def test_client_and_tritonclient_share_a_process() -> None:
    """Both register protobuf messages; a second `inference` package would break the import."""
    for order in ("rouse, tritonclient.grpc.aio", "tritonclient.grpc, rouse.cli.main"):
        done = subprocess.run([sys.executable, "-c", f"import {order}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


def test_client_imports_only_contracts_of_ours() -> None:
    code = "import sys, rouse, rouse.cli.main; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("rouse")}
    assert ours == {"rouse", "rouse_contracts"}
    assert not {"torch", "tritonclient", "transformers"} & set(done.stdout.split())


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4)))
def test_arrays_survive(array: np.ndarray) -> None:
    np.testing.assert_array_equal(to_array(encode("x", array, None)), array)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_survive(values: list[bytes]) -> None:
    assert to_array(encode("x", np.array([*values, None], dtype=object)[:-1], None)).tolist() == values


@given(hnp.arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=True)))
def test_bfloat16_rounds_as_torch_does(array: np.ndarray) -> None:
    want = torch.from_numpy(array).bfloat16().float().numpy()
    np.testing.assert_array_equal(to_array(encode("x", array.tolist(), spec("BF16"))), want)
    np.testing.assert_array_equal(to_array(encode("x", torch.from_numpy(array).bfloat16(), None)), want)


def test_plain_values_take_the_datatype_of_the_signature() -> None:
    assert encode("x", [1, 2], spec("FP16")).datatype == "FP16"
    assert encode("x", [1, 2], spec("UINT8")).datatype == "UINT8"
    assert encode("x", [1.0, 2.0], spec("INT64")).datatype == "INT64"
    assert encode("x", ["a", b"b"], spec("BYTES")).datatype == "BYTES"
    assert list(encode("x", 3, spec("INT8")).shape) == []
    assert encode("x", torch.ones(2, requires_grad=True), None).datatype == "FP32"


@pytest.mark.parametrize(
    ("value", "datatype"),
    [([1.5], "INT64"), ([300], "UINT8"), ([-1], "UINT32"), (["a"], "FP32"), ([[1], [1, 2]], "FP32"), ([2], "BOOL")],
)
def test_values_that_do_not_fit_are_refused(value: object, datatype: str) -> None:
    with pytest.raises(rouse.InvalidArgument, match="'x'") as caught:
        encode("x", value, spec(datatype))
    assert caught.value.reason == "BAD_TENSOR"


def test_dtypes_without_a_datatype_are_refused() -> None:
    with pytest.raises(rouse.InvalidArgument, match="complex64"):
        encode("x", np.ones(1, dtype=np.complex64), None)


def test_address_order(tmp_path: Path) -> None:
    environ = {"ROUSE_DATA_DIR": str(tmp_path)}
    assert resolve(None, environ) == DEFAULT
    (tmp_path / "mesh.json").write_text(json.dumps({"gateway_address": "127.0.0.1:9"}))
    assert resolve(None, environ) == "127.0.0.1:9"
    assert resolve(None, environ | {"ROUSE_ADDRESS": "host:2"}) == "host:2"
    assert resolve("[::1]:3", environ | {"ROUSE_ADDRESS": "host:2"}) == "[::1]:3"
    assert resolve("unix:/tmp/x", environ) == "unix:/tmp/x"


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "host:x", "http://host:1", "host:²"])
def test_bad_addresses(text: str, tmp_path: Path) -> None:
    with pytest.raises(rouse.InvalidArgument) as caught:
        resolve(text, {"ROUSE_DATA_DIR": str(tmp_path)})
    assert caught.value.reason == "BAD_ADDRESS"


@pytest.mark.parametrize("content", ["", "[]", '{"gateway_address": 3}', "{}"])
def test_damaged_mesh_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "mesh.json").write_text(content)
    with pytest.raises(rouse.InvalidArgument, match=r"mesh\.json"):
        resolve(None, {"ROUSE_DATA_DIR": str(tmp_path)})

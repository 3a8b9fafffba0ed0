"""PyTorch's own operator samples on the `rouse` device against the CPU: bits, dtypes, sizes, strides.

For each dtype that the CPU supports. What does not agree is listed here with its reason; a mismatch that is not is a
failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch

from rouse_testkit.tensors import assert_same, one_thread

SAMPLES = 4
# Memory that nobody wrote: what is compared is how it looks.
UNWRITTEN = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


# Their indices are in the host's memory on every device.
HOST_ARGUMENTS = ("tensor_split",)
LEAST_PASSED = 0.98

REFUSED = {
    "sparse.sampled_addmm": "sparse tensors do not exist on the device; a typed error names the operator",
    "sparse.mm.reduce": "sparse tensors do not exist on the device; a typed error names the operator",
    "to_sparse": "sparse tensors do not exist on the device; a typed error names the operator",
}
OTHER = {
    "nn.functional.linear_cross_entropy.chunked": "PyTorch's Python code picks how to accumulate half precision by the "
    "device's name",
    "nn.functional.linear_cross_entropy.chunked_none": "as linear_cross_entropy.chunked",
    "linalg.lstsq": "driver gelsy reads pivots that nobody wrote: the CPU alone gives several results",
    "linalg.lstsq.grad_oriented": "as linalg.lstsq",
}


@dataclass
class Report:
    """Entries are an operator (with its variant) at a dtype."""

    entries: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # A typed error that says that it cannot be redirected.
    wrong: dict[str, str] = field(default_factory=dict)  # Other results or other errors.

    @property
    def passed(self) -> float:
        return 1 - (len(self.refused) + len(self.wrong)) / max(self.entries, 1)


def there(value: Any) -> Any:
    """The value on the device, with the same storages' extents, strides and offsets."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return value.to("rouse")
        if value.is_conj():
            return there(value.conj()).conj()
        if value.is_neg():
            return there(torch._neg_view(value))._neg_view()
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        moved = whole.to("rouse").as_strided(value.size(), value.stride(), value.storage_offset())
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        items = [there(each) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: there(each) for key, each in value.items()}
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device("rouse")
    return value


def entries() -> Iterator[tuple[Any, torch.dtype]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for dtype in sorted(op.supported_dtypes("cpu"), key=str):
            yield op, dtype


def compare(op: Any, dtype: torch.dtype) -> tuple[str, str] | None:
    """None where all samples agree; else "refused" or "wrong", and what happened."""
    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
        arguments = (sample.input, *sample.args)
        device_arguments, device_keywords = there(arguments), there(sample.kwargs)
        if op.name in HOST_ARGUMENTS:
            device_arguments = (there(sample.input), *sample.args)
        torch.manual_seed(0)
        try:
            expected = op(*arguments, **sample.kwargs)
        except Exception:  # noqa: BLE001 - samples that the CPU refuses show nothing
            continue
        torch.manual_seed(0)
        try:
            found = op(*device_arguments, **device_keywords)
            if op.name in UNWRITTEN:
                found, expected = torch.zeros_like(found), torch.zeros_like(expected)
            assert_same(found, expected, op.name)
        except NotImplementedError as error:
            return "refused", str(error).splitlines()[0][:200]
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            return "wrong", f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return None


def run() -> Report:
    from rouse_native import redirect

    report = Report()
    session = redirect.spawn_local()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for op, dtype in entries():
                name = f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''} {str(dtype)[6:]}"
                report.entries += 1
                found = compare(op, dtype)
                if found:
                    (report.refused if found[0] == "refused" else report.wrong)[name] = found[1]
                if not torch.get_device_module("rouse").is_available():
                    report.wrong[name] = "the executor ended"
                    session.close()
                    session = redirect.spawn_local()
        finally:
            session.close()
    return report


def operators(found: dict[str, str]) -> set[str]:
    return {name.split()[0] for name in found}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_operators_give_the_bits_of_the_cpu() -> None:
    pytest.importorskip("rouse_native._redirect", reason="the native core is not built")
    report = run()
    counts = f"{report.entries} entries, {len(report.refused)} refused, {len(report.wrong)} other"
    print(f"{counts}: {report.passed:.2%} agree")
    unlisted = {name: why for name, why in report.refused.items() if name.split()[0] not in REFUSED}
    unlisted |= {name: why for name, why in report.wrong.items() if name.split()[0] not in OTHER}
    assert not unlisted
    assert report.passed >= LEAST_PASSED
    assert set(REFUSED) == operators(report.refused), "the list names what agrees by now"

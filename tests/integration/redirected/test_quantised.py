"""Functions with quantised layers, on the `rouse` device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rouse_runtime.redirected import Redirected, native_device
from rouse_testkit.redirected import LAYOUT, SIZE, SPEC, Executor, Function, Host, X, called


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
async def test_quantised_layers_run_unchanged_and_are_no_tape(host: Host, executor: Executor) -> None:
    layer = torch.ao.nn.quantized.dynamic.Linear(SIZE, SIZE)
    weight, bias = host.tensors["weight"], host.tensors["bias"]
    layer.set_weight_bias(torch.quantize_per_tensor(weight.clone(), 0.01, 0, torch.qint8), bias.clone())

    def code(inputs: dict[str, np.ndarray]) -> Any:
        y = layer(torch.from_numpy(inputs["x"]))
        q = torch.quantize_per_tensor(y, 0.1, 7, torch.quint8)
        return {"y": y, "q": q.int_repr(), "back": (q.dequantize() - y).abs().amax(0)}

    want = called(Function(code, [layer]), x=X)
    function = Redirected(Function(code, [layer]), host.weights, LAYOUT, native_device(), SPEC)
    for _ in range(2):  # Each session's executor packs the weights anew.
        await executor.attach(function)
        for _ in range(3):
            found = called(function, x=X)
            for key in want:
                np.testing.assert_array_equal(found[key], want[key])
        assert await executor.tapes() == 0
        function.disconnect()

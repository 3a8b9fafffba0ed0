"""Functions on the `rouse` device, with a real executor: to the bit what they compute without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rouse_runtime.failures import ExecutorLost
from rouse_runtime.redirected import Redirected, native_device
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsError
from rouse_testkit.redirected import BASE, LAYOUT, SIZE, SPEC, Executor, Function, Host, X, called


def plain_code(host: Host) -> dict[str, Callable[[dict[str, np.ndarray]], Any]]:
    """Functions as people write them, for one device."""
    layer, weight = host.linear(), host.tensors["weight"]
    constant, table = torch.arange(SIZE) / 3, torch.randn(SIZE, generator=torch.Generator().manual_seed(2))

    def branches(inputs: dict[str, np.ndarray]) -> Any:
        y = layer(torch.from_numpy(inputs["x"]))
        return {"y": y.relu() if y.sum().item() > 1e6 else y.sigmoid() * constant}

    def writes_into_the_host(inputs: dict[str, np.ndarray]) -> Any:
        kept = torch.zeros(3, SIZE)
        kept += layer(torch.from_numpy(inputs["x"]))
        kept[1] = layer.bias
        total = torch.empty(SIZE)
        torch.sum(layer.weight, 0, out=total)
        assert kept.device.type == total.device.type == "cpu"
        return {"y": kept, "z": total}

    def reads_numbers(inputs: dict[str, np.ndarray]) -> Any:
        y = layer(torch.from_numpy(inputs["x"]))
        best = [int(row.argmax()) for row in y]
        return {"y": y.numpy()[0] * 2, "z": np.array(best), "w": np.asarray(y.softmax(1)), "l": y[1].tolist()}

    def mixes(inputs: dict[str, np.ndarray]) -> Any:
        x = torch.from_numpy(inputs["x"])
        y = torch.cat([layer(x), x, constant.expand(3, SIZE), x @ weight.T[:, 2:].contiguous().repeat(1, 2)[:, :SIZE]])
        mask = y > table
        return {
            "y": torch.where(mask, y, table),
            "z": y[mask],
            "w": torch.stack([weight[0], table]),
            "v": y[torch.tensor([2, 0])],
        }

    return {"branches": branches, "writes": writes_into_the_host, "reads": reads_numbers, "mixes": mixes}


@pytest.mark.parametrize("name", ["branches", "writes", "reads", "mixes"])
async def test_code_for_one_device_runs_unchanged(name: str, host: Host, executor: Executor) -> None:
    code, layer = plain_code(host)[name], host.linear()
    want = called(Function(code, [layer]), x=X)
    cells = [cell.cell_contents for cell in code.__closure__ or ()]
    modules = [cell for cell in cells if isinstance(cell, torch.nn.Module)]
    function = Redirected(Function(code, modules), host.weights, LAYOUT, native_device(), SPEC)
    host.weights.detach()  # whoever touches the host's weights now ends the process
    await executor.attach(function)
    for _ in range(3):
        found = called(function, x=X)
        assert found.keys() == want.keys()
        for key in want:
            np.testing.assert_array_equal(found[key], want[key])
    function.disconnect()


async def test_weights_are_named_by_address_and_come_back_after_a_session(host: Host, executor: Executor) -> None:
    from rouse_native import _redirect

    layer = host.linear()
    tied = torch.nn.Linear(SIZE, SIZE, bias=False, device="meta")
    tied.weight = layer.weight
    function = Redirected(Function(lambda inputs: {}, [layer, tied]), host.weights, LAYOUT, native_device(), SPEC)
    on_host = layer.weight
    for _ in range(2):
        await executor.attach(function)
        assert (layer.weight.device.type, layer.weight.is_contiguous()) == ("rouse", True)
        assert _redirect.name_of(layer.weight) == BASE
        assert _redirect.name_of(layer.bias) == BASE + 1024
        assert tied.weight is layer.weight
        function.disconnect()
        assert layer.weight is tied.weight is on_host


async def test_a_generator_s_responses_come_to_the_host(host: Host, executor: Executor) -> None:
    layer = host.linear()

    def stream(inputs: dict[str, np.ndarray]) -> Iterator[Any]:
        y = torch.from_numpy(inputs["x"])
        for _ in range(3):
            y = layer(y).tanh()
            yield {"y": y}

    want = [item["y"].numpy() for item in stream({"x": X.copy()})]
    function = Redirected(Function(stream, [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    responses: Any = function.predict({"x": X.copy()}, Request("r", None, 60.0))
    found = [item["y"] for item in responses]
    assert [tensor.device.type for tensor in found] == ["cpu"] * 3
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    function.disconnect()


async def test_an_error_names_the_operator_and_the_next_request_is_served(host: Host, executor: Executor) -> None:
    layer = host.linear()

    def code(inputs: dict[str, np.ndarray]) -> Any:
        y = layer(torch.from_numpy(inputs["x"]))
        return {"y": y.reshape(7, 5) if inputs["x"][0, 0] < 0 else y}

    want = called(Function(code, [layer]), x=X)["y"]
    function = Redirected(Function(code, [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    with pytest.raises(RuntimeError, match="shape '\\[7, 5\\]' is invalid"):
        called(function, x=-X)
    np.testing.assert_array_equal(called(function, x=X)["y"], want)
    function.disconnect()


async def test_a_killed_executor_is_an_error_and_the_next_one_has_everything(host: Host, executor: Executor) -> None:
    layer = host.linear()
    code = Function(lambda inputs: {"y": layer(torch.from_numpy(inputs["x"]))}, [layer])
    want = called(code, x=X)["y"]
    function = Redirected(code, host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    np.testing.assert_array_equal(called(function, x=X)["y"], want)
    executor.process.kill()
    with pytest.raises(ExecutorLost):
        called(function, x=X)
    function.disconnect()
    async with asyncio.timeout(30):
        await executor.ended.wait()
    await executor.attach(function)
    np.testing.assert_array_equal(called(function, x=X)["y"], want)
    function.disconnect()


def test_what_cannot_be_named_is_refused_when_the_function_loads(host: Host) -> None:
    module = torch.nn.Module()
    module.register_buffer("odd", host.tensors["weight"].view(torch.int32))
    with pytest.raises(WeightsError, match="laid over the weight 'weight', which is F32"):
        Redirected(Function(lambda inputs: {}, [module]), host.weights, LAYOUT, native_device(), SPEC)


async def test_weights_are_only_read(host: Host, executor: Executor) -> None:
    layer = host.linear()
    function = Redirected(Function(lambda inputs: {}, [layer]), host.weights, LAYOUT, native_device(), SPEC)
    before = host.tensors["weight"].clone()
    await executor.attach(function)
    changes: list[Callable[[], object]] = [
        lambda: layer.weight.add_(1),
        lambda: layer.weight.copy_(torch.zeros(SIZE, SIZE)),
        lambda: torch.neg(layer.weight, out=layer.weight),
    ]

    def heard(change: Callable[[], object]) -> None:
        change()
        layer.weight.cpu()  # an error is heard at the next synchronisation at the latest

    with torch.no_grad():
        for change in changes:
            with pytest.raises(RuntimeError, match=r"would change a weight of the model.*aten::.*on the rouse device"):
                heard(change)
            assert torch.equal(layer.weight.cpu(), before)
        assert torch.equal((layer.weight.clone() + 1).cpu(), before + 1)
    function.disconnect()


def looked_at(layer: torch.nn.Module) -> dict[str, tuple[Callable[[dict[str, np.ndarray]], Any], str]]:
    """Code that a tape would not do justice, and what is said of it; empty where it becomes one."""

    def as_tensor(inputs: dict[str, np.ndarray]) -> Any:
        x = torch.from_numpy(np.asarray(inputs["x"]))
        return {"y": layer(x.float() * 2)[:, 1:] + x[0, 0]}

    def branches_on_the_host(inputs: dict[str, np.ndarray]) -> Any:
        y = layer(torch.from_numpy(inputs["x"]))
        return {"y": y if inputs["x"][0, 0] > 0.5 else -y}

    def leaks(inputs: dict[str, np.ndarray]) -> Any:
        bare = np.asarray(inputs["x"])  # no array class of ours would see this
        return {"y": layer(torch.from_numpy(inputs["x"])) * float(bare.max())}

    def writes_to_its_input(inputs: dict[str, np.ndarray]) -> Any:
        torch.from_numpy(inputs["x"]).view(-1).add_(1)
        return {"y": layer(torch.from_numpy(inputs["x"] * 3))}

    def quantises(inputs: dict[str, np.ndarray]) -> Any:
        q = torch.quantize_per_tensor(layer(torch.from_numpy(inputs["x"])), 0.1, 7, torch.quint8)
        return {"y": torch.relu(q)[1:].dequantize()}

    def answers_from_the_host(inputs: dict[str, np.ndarray]) -> Any:
        return {"y": layer(torch.from_numpy(inputs["x"])).numpy()}

    return {
        "as_tensor": (as_tensor, ""),
        "branches": (branches_on_the_host, "looks at the array 'x'"),
        "leaks": (leaks, "looks at the array 'x'"),
        "writes": (writes_to_its_input, "looks at the array 'x'"),
        "quantises": (quantises, ""),
        "host": (answers_from_the_host, "the output 'y' is made on the host"),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["as_tensor", "branches", "leaks", "writes", "quantises", "host"])
async def test_only_what_goes_by_tensors_alone_becomes_a_tape(name: str, host: Host, executor: Executor) -> None:
    layer = host.linear()
    code, reason = looked_at(layer)[name]
    draws = [np.random.default_rng(seed).random((3, SIZE), dtype=np.float32) for seed in range(5)]
    want = [called(Function(code, [layer]), x=x)["y"] for x in draws]
    function = Redirected(Function(code, [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    for x, y in zip(draws, want, strict=True):
        np.testing.assert_array_equal(called(function, x=x)["y"], y)
    assert reason in function.recorder.refused
    assert bool(function.recorder.refused) == bool(reason)
    assert [entry.requests for entry in function.recorder.recordings()] == ([] if reason else [5])
    assert await executor.tapes() == (0 if reason else 1)
    function.disconnect()
    assert not function.recorder.recordings()

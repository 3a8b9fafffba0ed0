"""Functions on the `rouse` device, with a real executor: to the bit what they compute without it."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rouse_native
from rouse_common.link import Links
from rouse_contracts.functions import Execution, FunctionSpec
from rouse_contracts.repository import WeightTensor
from rouse_native.executor import ExecutorProcess, ExecutorSettings, SessionLimits
from rouse_runtime.context import bind
from rouse_runtime.failures import ExecutorLost
from rouse_runtime.redirected import Redirected, native_device
from rouse_runtime.request import Request
from rouse_runtime.weights import WeightsError, WeightsRange, make_tensors

pytestmark = pytest.mark.skipif(
    not rouse_native.built() or importlib.util.find_spec("rouse_native.redirect") is None,
    reason="the native core is not built on this machine",
)
BASE = 0x5000_4000_0000
SIZE = 16
LAYOUT = [
    WeightTensor(name="weight", file="w", dtype="F32", shape=[SIZE, SIZE], image_offset_bytes=0, size_bytes=1024),
    WeightTensor(name="bias", file="w", dtype="F32", shape=[SIZE], image_offset_bytes=1024, size_bytes=64),
]
IMAGE_BYTES = 1088
SPEC = FunctionSpec(name="f", execution=Execution.EXECUTION_ROUSE)


@dataclass
class Function:
    """A loaded function as a handler."""

    call: Callable[[dict[str, np.ndarray]], Any]
    modules: Sequence[torch.nn.Module]
    casts: bool = False
    takes_request: bool = False
    mixes: bool = True
    takes_tensors: bool = False

    def kept(self) -> Mapping[str, Any]:
        return {}

    def predict(self, inputs: dict[str, np.ndarray], request: Request) -> Any:
        return self.call(inputs)


class Host:
    """The model as an instance has it while it loads: mapped from the host copy."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "image"
        self.image.write_bytes(np.random.default_rng(0).random(IMAGE_BYTES // 4, dtype=np.float32).tobytes())
        self.weights = WeightsRange(IMAGE_BYTES, BASE)
        self.weights.map_private(str(self.image))
        self.tensors = make_tensors(self.weights, LAYOUT)["w"]

    def linear(self) -> torch.nn.Linear:
        layer = torch.nn.Linear(SIZE, SIZE, device="meta")
        bind(layer, dict(self.tensors))
        return layer


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rouse-") as name:
        yield Path(name)


@pytest.fixture
def host(folder: Path) -> Iterator[Host]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = Host(folder)
    yield made
    made.weights.close()
    torch.set_num_threads(threads)


class Executor:
    """A running executor that has the model, and its sessions."""

    def __init__(self, process: ExecutorProcess, folder: Path, image: Path) -> None:
        self.process, self._folder, self._image = process, folder, image
        self._sessions = 0
        self.ended = asyncio.Event()

    async def attach(self, function: Redirected, limit_bytes: int = 0) -> None:
        await self.process.serving(30)
        described = await self.process.client.describe(10)
        if not described.models:
            await self.process.client.map_model(
                "v", "a", base=BASE, size_bytes=IMAGE_BYTES, image=self._image, timeout_s=10
            )
        self._sessions += 1
        socket = self._folder / f"s{self._sessions}"
        limits = SessionLimits(scratch_bytes=limit_bytes)
        await self.process.client.open_session(socket.name, socket, 10, version_id="v", record=True, limits=limits)
        await asyncio.to_thread(function.connect, str(socket))

    async def tapes(self) -> int:
        """How many the latest session has recorded."""
        folder = self._folder / "tapes"
        folder.mkdir(exist_ok=True)
        return len((await self.process.client.save_tapes(f"s{self._sessions}", folder, 10)).tapes)


@pytest.fixture
async def executor(folder: Path, host: Host) -> AsyncIterator[Executor]:
    links = Links(1 << 20)
    ended: list[asyncio.Event] = []
    process = ExecutorProcess(
        ExecutorSettings("host:0", folder, {"threads": 1}), links, on_lost=lambda reason: ended[0].set()
    )
    async with process.running():
        executor = Executor(process, folder, host.image)
        ended.append(executor.ended)
        yield executor
    await links.close()


def called(function: Any, **inputs: np.ndarray) -> Mapping[str, np.ndarray]:
    with torch.inference_mode():
        result = function.predict({name: value.copy() for name, value in inputs.items()}, Request("r", None, 60.0))
        return {name: np.asarray(value) for name, value in result.items()}


X = np.random.default_rng(1).random((3, SIZE), dtype=np.float32)


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


MIB = 1 << 20


def grows(
    layer: torch.nn.Module, grow: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.flip(0)
) -> Callable[[dict[str, np.ndarray]], Any]:
    """A function that needs 32 MiB beside its weights for inputs below zero, and little otherwise."""

    def code(inputs: dict[str, np.ndarray]) -> Any:
        x = torch.from_numpy(inputs["x"])
        if inputs["x"][0, 0] < 0:
            x = grow(x[:1].expand(8 * MIB // SIZE, SIZE))[:3]
        return {"y": layer(x)}

    return code


# The result is made by the operator; by the client, for the operator.
@pytest.mark.parametrize(("grow", "who"), [(lambda x: x.flip(0), "aten::flip"), (lambda x: x.repeat(1, 1), "")])
async def test_over_its_limit_a_request_gets_the_error_and_the_next_one_is_served(
    grow: Callable[[torch.Tensor], torch.Tensor], who: str, host: Host, executor: Executor
) -> None:
    layer = host.linear()
    want = called(Function(grows(layer, grow), [layer]), x=X)["y"]
    function = Redirected(Function(grows(layer, grow), [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function, limit_bytes=8 * MIB)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            called(function, x=-X)
        assert who in str(caught.value)
        assert "`working_memory_bytes`" in str(caught.value)
        assert f"of at most {8 * MIB} beside the weights" in str(caught.value)
        np.testing.assert_array_equal(called(function, x=X)["y"], want)
    (model,) = (await executor.process.client.describe(10)).models
    assert 0 < model.most_working_bytes <= 8 * MIB
    assert executor.process.incarnation == 1
    function.disconnect()


async def test_what_a_version_held_is_known_to_the_byte_and_given_back_with_its_session(
    host: Host, executor: Executor
) -> None:
    layer, client = host.linear(), executor.process.client
    function = Redirected(Function(grows(layer), [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    called(function, x=X)
    little = (await client.most_working_bytes(10))["v"]
    assert 0 < little < MIB
    called(function, x=-X)
    described = await client.describe(10)
    (model,), (session,) = described.models, described.sessions
    # 32 MiB in one block, its header, and what was there before.
    assert 32 * MIB < model.most_working_bytes <= 33 * MIB + little
    assert model.most_working_bytes == session.most_working_bytes
    # It is kept for the next request.
    assert model.working_bytes == model.most_working_bytes
    called(function, x=-X)
    assert (await client.most_working_bytes(10))["v"] == model.most_working_bytes
    function.disconnect()
    await client.close_session("s1", 10)
    (after,) = (await client.describe(10)).models
    assert (after.working_bytes, after.most_working_bytes) == (0, model.most_working_bytes)


@pytest.mark.parametrize("limit_bytes", [1, 4095])
async def test_a_limit_that_is_too_small_to_begin_with_ends_the_session_and_not_the_executor(
    limit_bytes: int, host: Host, executor: Executor
) -> None:
    layer = host.linear()
    code = Function(lambda inputs: {"y": layer(torch.from_numpy(inputs["x"]))}, [layer])
    function = Redirected(code, host.weights, LAYOUT, native_device(), SPEC)

    async def attached_and_called() -> None:
        await executor.attach(function, limit_bytes=limit_bytes)
        called(function, x=X)

    with pytest.raises((ExecutorLost, RuntimeError)):
        await attached_and_called()
    function.disconnect()
    await executor.attach(function)
    called(function, x=X)
    assert executor.process.incarnation == 1
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

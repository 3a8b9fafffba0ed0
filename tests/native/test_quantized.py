"""Quantised tensors and layers on the `rouse` device, bit for bit as on the CPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rouse_testkit.tensors import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")

SCALES, ZEROS = torch.tensor([0.1, 0.02, 0.5, 0.07]), torch.tensor([0, 3, -2, 5])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """PyTorch says of each of these functions that torchao has a newer one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def build(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(0)).to(device)


def per_tensor(x: torch.Tensor, dtype: torch.dtype = torch.quint8) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.05, 3, dtype)


def per_channel(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_channel(x, SCALES.to(x.device), ZEROS.to(x.device), 0, torch.qint8)


def all_dtypes(x: torch.Tensor) -> Any:
    return [per_tensor(x, dtype) for dtype in (torch.quint8, torch.qint8, torch.qint32)]


def of_data(x: torch.Tensor) -> Any:
    """Scales that are computed: another one with other data of the same shape."""
    return [
        torch.quantize_per_tensor(each, each.abs().max() / 127, torch.tensor(0, device=x.device), torch.qint8)
        for each in (x, x * 3)
    ] + [torch.quantize_per_tensor_dynamic(each, torch.quint8, False) for each in (x, x * 3)]


def back(x: torch.Tensor) -> Any:
    q, c = per_tensor(x), per_channel(x)
    return q.dequantize(), q.int_repr(), c.dequantize(), c.int_repr(), q.dequantize() @ c.dequantize().T


def views(x: torch.Tensor) -> Any:
    q, c = per_tensor(x), per_channel(x)
    return (
        q.view(2, 12), q.t(), q[1:3], q[:, 2], q.reshape(-1), q.unsqueeze(0).squeeze(0), q.flatten(),
        q.permute(1, 0).contiguous(), c[:, 1:4], c.clone(), q.clone(), q.detach(), torch.empty_like(q).shape,
    )  # fmt: skip


def operators(x: torch.Tensor) -> Any:
    q = per_tensor(x)
    image = torch.quantize_per_tensor(x.reshape(1, 1, 4, 6), 0.05, 3, torch.quint8)
    other = torch.quantize_per_tensor(x.flip(0), 0.05, 3, torch.quint8)
    return (
        torch.relu(q),
        torch.ops.quantized.add(q, other, 0.1, 2),
        torch.ops.quantized.mul(q, other, 0.1, 2),
        torch.ops.quantized.cat([q, other], 0, 0.1, 2),
        torch.nn.functional.max_pool2d(image, 2),
        torch.nn.functional.adaptive_avg_pool2d(image, (2, 3)),
        torch.nn.functional.interpolate(image, scale_factor=2.0),
        torch.nn.functional.hardtanh(q, -0.5, 0.5),
        torch.sigmoid(q),
        q.equal(other),
        q.mean(),
        torch.sort(q, 1).values,
    )


def copies(x: torch.Tensor) -> Any:
    q = per_tensor(x)
    other = torch.quantize_per_tensor(x * 2, 0.5, 1, torch.quint8)
    q.copy_(other)  # Takes the other's scale.
    empty = torch._empty_affine_quantized([4, 6], scale=0.25, zero_point=4, dtype=torch.quint8, device=x.device)
    empty.copy_(x)  # Quantises.
    part = per_tensor(x)
    part[1:3] = other[:2]
    return q, empty, copy.deepcopy(q)


RUNS: list[Callable[[torch.Tensor], Any]] = [all_dtypes, of_data, per_channel, back, views, operators, copies]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_quantised_tensors_have_the_bits_of_the_cpu(rouse: str, run: Callable[[torch.Tensor], Any]) -> None:
    expected = run(build("cpu"))
    for _ in range(2):  # The second time nothing is learnt any more.
        assert_same(run(build(rouse)), expected, run.__name__)


@pytest.mark.parametrize("make", [per_tensor, per_channel], ids=["tensor", "channel"])
def test_they_move_there_and_back(rouse: str, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    host = make(build("cpu"))
    there = host.to(rouse)
    assert there.device.type == rouse
    assert there.is_quantized
    assert_same(there, host)
    assert_same(there.cpu(), host)
    assert_same(there.dequantize(), host.dequantize())
    with pytest.raises(RuntimeError, match="dequantize"):
        torch.empty(4, 6).copy_(there)


class Network(torch.nn.Module):
    """What torch.ao's tutorials quantise: convolutions, batch normalisation, an addition, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.second, self.relu = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2), torch.nn.ReLU()
        self.last, self.plus = torch.nn.Linear(8, 5), torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm(self.first(self.quant(x))))
        x = self.plus.add(x, self.second(x))
        return self.dequant(self.last(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)))


@pytest.mark.parametrize("engine", ["x86", "fbgemm", "onednn", "qnnpack"])
def test_a_network_that_was_quantised_statically(rouse: str, engine: str) -> None:
    if engine not in torch.backends.quantized.supported_engines:
        pytest.skip(f"this PyTorch has no {engine}")
    torch.manual_seed(0)
    model = torch.ao.quantization.fuse_modules(Network().eval(), [["first", "norm", "relu"]])
    model.qconfig = torch.ao.quantization.get_default_qconfig(engine)
    prepared = torch.ao.quantization.prepare(model)
    prepared(build("cpu", 2, 3, 8, 8))
    chosen = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        network = torch.ao.quantization.convert(prepared)
    finally:
        torch.backends.quantized.engine = chosen
    expected = network(build("cpu", 2, 3, 8, 8))
    network.to(rouse)
    for _ in range(2):
        assert_same(network(build(rouse, 2, 3, 8, 8)), expected)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_layers_that_were_quantised_dynamically(rouse: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=dtype)
    expected = [quantised(build("cpu") * factor) for factor in (1, 3)]
    for _ in range(2):
        assert_same([quantised(build(rouse) * factor) for factor in (1, 3)], expected)


def test_recurrent_layers_hold_objects_within_objects(rouse: str) -> None:
    torch.manual_seed(0)
    whole = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(6, 5, 2), "gru": torch.nn.GRU(6, 5)}).eval()
    layers = {torch.nn.LSTM, torch.nn.GRU}
    quantised = torch.ao.quantization.quantize_dynamic(whole, layers, dtype=torch.qint8).to(rouse)
    for name in quantised:
        assert_same(quantised[name](build(rouse, 3, 2, 6)), quantised[name](build("cpu", 3, 2, 6)))


def test_embeddings_with_a_scale_a_row(rouse: str) -> None:
    weight, ids = build("cpu", 10, 6), torch.tensor([1, 9, 3, 3])
    observer = torch.ao.quantization.PerChannelMinMaxObserver(
        dtype=torch.quint8, qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
    )
    observer(weight)
    scales, zeros = observer.calculate_qparams()
    table = torch.quantize_per_channel(weight, scales, zeros, 0, torch.quint8)
    layer = torch.ao.nn.quantized.Embedding(10, 6, _weight=table)
    bag = torch.ao.nn.quantized.EmbeddingBag(10, 6, _weight=table)
    offsets = torch.tensor([0, 1])
    assert_same(layer(ids.to(rouse)), layer(ids))
    assert_same(bag(ids.to(rouse), offsets.to(rouse)), bag(ids, offsets))
    assert_same(table.to(rouse), table)


def test_weights_are_packed_on_the_host(rouse: str) -> None:
    x, weight = build("cpu"), build("cpu", 3, 6)
    packed = [
        torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(weight.to(device), 0.02, 0, torch.qint8), None)
        for device in ("cpu", rouse)
    ]
    expected = torch.ops.quantized.linear(per_tensor(x), packed[0], 0.1, 4)
    for each in packed:
        assert_same(torch.ops.quantized.linear(per_tensor(x.to(rouse)), each, 0.1, 4), expected)


def test_objects_that_are_gone_are_dropped_and_others_take_their_places(rouse: str) -> None:
    x = build("cpu")
    for seed in range(40):
        weight = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed))
        packed = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(weight, 0.02, 0, torch.qint8), None)
        expected = torch.ops.quantized.linear(per_tensor(x), packed, 0.1, 4)
        assert_same(torch.ops.quantized.linear(per_tensor(x.to(rouse)), packed, 0.1, 4), expected)


def test_what_is_not_redirected_says_so(rouse: str) -> None:
    x = build(rouse)
    with pytest.raises(NotImplementedError, match=r"quantize_per_channel.*quantised tensor of a dtype"):
        torch.quantize_per_channel(x, torch.ones(4, device=rouse), torch.zeros(4, device=rouse), 0, torch.quint4x2)
    chosen = torch.backends.quantized.engine
    q = per_tensor(x)
    torch.backends.quantized.engine = "qnnpack"
    try:
        with pytest.raises(NotImplementedError, match="engine was changed"):
            torch.relu(q)
    finally:
        torch.backends.quantized.engine = chosen
    assert_same(torch.relu(q), torch.relu(per_tensor(build("cpu"))))

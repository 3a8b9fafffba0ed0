"""Modules and transformations of PyTorch on the `rouse` device: inference and training, bit for bit as on the CPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from rouse_testkit.tensors import assert_same, moved


def drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def made(factory: Any, *args: Any, **settings: Any) -> Any:
    torch.manual_seed(0)
    return factory(*args, **settings)


RECURRENT = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def recurrent(kind: str) -> Iterator[tuple[str, Any]]:
    for batch_first in (False, True):
        for bidirectional in (False, True):
            settings = {"batch_first": batch_first, "bidirectional": bidirectional}
            yield f"{settings}", made(RECURRENT[kind], 8, 6, 2, **settings)
    yield "without biases", made(RECURRENT[kind], 8, 6, bias=False, batch_first=True)
    if kind == "lstm":
        yield "projected", made(nn.LSTM, 8, 6, 2, proj_size=3, batch_first=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", list(RECURRENT))
def test_recurrent_layers_infer(rouse: str, kind: str, dtype: torch.dtype) -> None:
    x = drawn(2, 7, 8).to(dtype)
    for name, model in recurrent(kind):
        for frozen in (False, True):
            model = model.to("cpu", dtype).requires_grad_(not frozen)
            with torch.inference_mode():
                expected = model(x)
            model.to(rouse)
            with torch.inference_mode():
                assert_same(model(x.to(rouse)), expected, name)


@pytest.mark.parametrize("kind", list(RECURRENT))
def test_recurrent_layers_train(rouse: str, kind: str) -> None:
    def step(model: nn.Module, device: str) -> Any:
        model = copy.deepcopy(model).to(device)
        x = drawn(2, 7, 8).to(device).requires_grad_()
        output, _state = model(x)
        output.pow(2).sum().backward()
        return moved([output.detach(), x.grad, [each.grad for each in model.parameters()]], "cpu")

    for name, model in recurrent(kind):
        assert_same(step(model, rouse), step(model, "cpu"), name)


@pytest.mark.parametrize("kind", list(RECURRENT))
def test_recurrent_layers_take_packed_sequences(rouse: str, kind: str) -> None:
    def run(device: str) -> Any:
        model = made(RECURRENT[kind], 8, 6, 2, bidirectional=True, batch_first=True).to(device)
        lengths = torch.tensor([7, 3, 5, 3])
        packed = pack_padded_sequence(drawn(4, 7, 8).to(device), lengths, batch_first=True, enforce_sorted=False)
        with torch.no_grad():
            inferred, state = model(packed)
        trained, _ = model(packed)
        trained.data.sum().backward()
        found = [inferred.data, state, trained.data.detach(), [each.grad for each in model.parameters()]]
        return moved(found, "cpu")

    assert_same(run(rouse), run("cpu"))


@pytest.mark.parametrize("kind", list(RECURRENT))
def test_recurrent_layers_under_autocast_and_cells(rouse: str, kind: str) -> None:
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}[kind]

    def run(device: str) -> Any:
        model, one = made(RECURRENT[kind], 8, 6, 2).to(device), made(cell, 8, 6).to(device)
        x = drawn(7, 2, 8).to(device)
        with torch.no_grad():
            eager = one(x[0])
            with torch.autocast(device, dtype=torch.bfloat16):
                cast = model(x)
        stepped = one(x[0])
        (stepped[0] if kind == "lstm" else stepped).sum().backward()
        return moved([eager, cast, [each.grad for each in one.parameters()]], "cpu")

    assert_same(run(rouse), run("cpu"))


def test_an_lstm_of_inference_draws_no_random_numbers(rouse: str) -> None:
    from rouse_native import tape

    model = made(nn.LSTM, 8, 6, 2, dropout=0.5).eval().to(rouse)

    def function(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x)[0]
        return found

    with torch.inference_mode():
        for seed in range(4):
            x = drawn(7, 2, 8, seed=seed).to(rouse)
            (found,) = tape.call(function, [x], "lstm")
            assert torch.equal(found.cpu(), function(x).cpu())
        replayed = tape.replay([drawn(7, 2, 8, seed=9).to(rouse)], "lstm")
    assert replayed.outcome is tape.Outcome.DONE, [one.refused for one in tape.infos()]


def test_tied_weights_stay_tied_and_optimizers_keep_their_parameters(rouse: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 4)
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(self.words(ids))
            return found

    def run(device: str) -> torch.Tensor:
        model = made(Tied)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.words.weight
        model.to(device)
        assert model.out.weight is model.words.weight is before
        ids = torch.tensor([1, 2], device=device)
        model(ids).sum().backward()
        optimizer.step()
        found: torch.Tensor = model(ids).detach().cpu()
        assert model.to("cpu").words.weight is before
        return found

    assert torch.equal(run(rouse), run("cpu"))


def test_checkpointed_layers_drop_the_same_values_again(rouse: str) -> None:
    from torch.utils.checkpoint import checkpoint

    def run(device: str) -> Any:
        model = made(lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2))).to(device)
        found = []
        for reentrant in (False, True):
            torch.manual_seed(3)
            x = drawn(5, 4).to(device).requires_grad_()
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            found.append(x.grad)
        return moved(found, "cpu")

    assert_same(run(rouse), run("cpu"))


def test_derivatives_that_are_zero_have_memory(rouse: str) -> None:
    """Forward mode makes tensors of zeros without memory, which the executor would have read."""
    function = torch.func.hessian(lambda x: (x.sin() * x).sum())
    assert_same(function(drawn(4).to(rouse)), function(drawn(4)))
    zeros = torch._efficientzerotensor((3,), device=rouse)
    assert torch.equal((zeros + 1).cpu(), torch.ones(3))


def test_a_nested_result_is_refused_and_the_session_goes_on(rouse: str) -> None:
    model = made(nn.TransformerEncoder, nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval().to(rouse)
    padded = torch.zeros(2, 7, dtype=torch.bool)
    padded[0, 5:] = True
    x = drawn(2, 7, 16)
    with torch.inference_mode():
        with pytest.raises(NotImplementedError, match="aten::_nested_tensor_from_mask"):
            model(x.to(rouse), src_key_padding_mask=padded.to(rouse))
        found = model(x.to(rouse))
        assert_same(found, model.to("cpu")(x))


def test_integers_are_counted_as_on_gpus(rouse: str) -> None:
    x = torch.tensor([0, 3, 2, 2, 1, 7, 8, -1])
    for dtype in (torch.int32, torch.int64):
        found = torch.histc(x.to(dtype).to(rouse), bins=8, min=0, max=7)
        assert_same(found, torch.histc(x.float(), bins=8, min=0, max=7).to(dtype))
    assert_same(torch.histc(x.float().to(rouse), bins=3), torch.histc(x.float(), bins=3))


def test_windows_of_every_kind(rouse: str) -> None:
    def run(device: str) -> list[torch.Tensor]:
        names = ["hann", "hamming", "blackman", "bartlett", "kaiser"]
        found = [getattr(torch, f"{name}_window")(9, device=device) for name in names]
        return [*found, torch.kaiser_window(9, False, device=device), torch.kaiser_window(9, True, 5.0, device=device)]

    assert_same(run(rouse), run("cpu"))


def test_traced_and_scripted_modules(rouse: str) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    model, x = made(nn.Sequential, *layers).eval(), drawn(2, 3, 8, 8)
    kept = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, x), kept)
    with torch.no_grad():
        expected = model(x)
        for location in (rouse, "cpu"):
            kept.seek(0)
            loaded = torch.jit.load(kept, map_location=location).to(rouse)
            for _ in range(3):
                assert_same(loaded(x.to(rouse)), expected)
        assert_same(torch.jit.script(model).to(rouse)(x.to(rouse)), expected)

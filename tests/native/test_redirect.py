"""The `rouse` device: functions that people write, bit for bit as on the CPU."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rouse_testkit.compute import STAND_IN
from rouse_testkit.tensors import assert_same, moved

FUNCTIONS: dict[str, Any] = {}


def function(run: Any) -> Any:
    FUNCTIONS[run.__name__] = run
    return run


@function
def arithmetic(x: torch.Tensor) -> Any:
    return x * 2 + 1.5, x @ x.T, (x / 3).relu(), x - x.mean(0), x > 0.1, -x, x**2, 2 - x


@function
def branches_on_values(x: torch.Tensor) -> Any:
    while x.abs().max() > 0.01:
        x = x / 2 if x.sum() > 0 else x / 3
    return x


@function
def in_place(x: torch.Tensor) -> Any:
    y = x.clone()
    y[1:3] += 1
    y[:, 0] = 7
    y.mul_(2).clamp_(max=5)
    view = y.view(-1)[::2]
    view.zero_()
    y[y > 1] = -1
    y.index_add_(0, torch.tensor([0, 2], device=x.device), y[:2].clone())
    return y, view


@function
def sorting_and_masking(x: torch.Tensor) -> Any:
    values, order = x.sort(dim=1, descending=True)
    top = x.topk(2, dim=0)
    mask = x > 0
    return (
        values,
        order,
        top.values,
        top.indices,
        x.masked_fill(mask, -1),
        x[mask],
        x.masked_select(~mask),
        mask.nonzero(),
        torch.where(mask, x, -x),
        x.argmax(1),
        torch.unique((x * 4).round()),
        x[[0, 2]],
        x[torch.tensor([1, 0])],
        x[:, None].expand(-1, 3, -1),
        torch.nonzero(mask, as_tuple=True),
    )


@function
def sampling(x: torch.Tensor) -> Any:
    torch.manual_seed(7)
    drawn = torch.multinomial(x.softmax(-1), 2)
    noise = torch.randn(3, 17, device=x.device)
    state = torch.get_device_module(x.device).get_rng_state() if x.device.type != "cpu" else torch.get_rng_state()
    generator = torch.Generator(device=x.device).manual_seed(3)
    other = torch.rand(5, device=x.device, generator=generator)
    dropped = torch.nn.functional.dropout(x, 0.5)
    return (
        drawn,
        noise,
        state,
        other,
        dropped,
        torch.randperm(9, device=x.device),
        torch.randint(9, (4,), device=x.device),
        torch.bernoulli(x.sigmoid()),
        torch.empty(4, 4, device=x.device).uniform_(),
        torch.rand_like(x),
        torch.normal(0.0, 1.0, (20,), device=x.device),
    )


@function
def lists_and_tuples(x: torch.Tensor) -> Any:
    parts = x.split(2)
    torch._foreach_add_(list(parts), 1.0)
    return (
        torch.cat(parts),
        torch.stack([x, x]),
        x.unbind(1),
        x.chunk(2, 1),
        torch._foreach_mul([x, x], [2.0, 3.0]),
        torch.var_mean(x, dim=1),
        x.max(1),
        torch.aminmax(x),
        torch.meshgrid(x[0], x[1], indexing="ij"),
    )


@function
def formats_and_numbers(x: torch.Tensor) -> Any:
    image = x.reshape(1, 2, 2, -1).contiguous(memory_format=torch.channels_last)
    whole = torch.arange(6, device=x.device)
    return (
        image,
        torch.nn.functional.conv2d(image, torch.ones(3, 2, 1, 1, device=x.device)),
        whole / 4,
        whole * 0.5,
        torch.tensor(3, device=x.device) * x.double(),
        x.half().sum(),
        x.bfloat16() @ x.bfloat16().T,
        whole.float().mean(),
        torch.zeros((), device=x.device) + 2,
        torch.full((2, 2), 3, device=x.device),
    )


@function
def complex_numbers(x: torch.Tensor) -> Any:
    z = torch.complex(x, x.flip(0))
    return (
        z.conj() * z,
        torch.fft.fft(x),
        z.abs(),
        torch.view_as_real(z),
        z.conj().T @ z,
        z.imag.neg(),
        z.conj().imag,
        torch.fft.irfft(torch.fft.rfft(x)),
        z.conj(),
        z.angle(),
    )


@function
def resizing(x: torch.Tensor) -> Any:
    out = torch.empty(0, device=x.device)
    torch.mul(x, 2, out=out)
    other = torch.empty(0, device=x.device)
    torch.sort(x.flatten(), out=(other, torch.empty(0, dtype=torch.int64, device=x.device)))
    grown = x.clone().resize_(2, 3)
    return out, other, grown, torch.cumsum(x, 0, out=torch.empty_like(x))


@function
def gradients(x: torch.Tensor) -> Any:
    weight = torch.full((x.shape[1], 3), 0.1, device=x.device, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(x @ weight, torch.tensor([0, 1, 2, 0], device=x.device))
    loss.backward()
    assert weight.grad is not None
    return loss.detach(), weight.grad


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On what the environment says, and on a device whose memory the executor may not touch."""
    if "rouse" in metafunc.fixturenames:
        stand_in = pytest.param(STAND_IN, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
        metafunc.parametrize("rouse", [None, stand_in], indirect=True, ids=["chosen", STAND_IN])


def build(device: str) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_give_the_bits_of_the_cpu(rouse: str, name: str) -> None:
    expected = FUNCTIONS[name](build("cpu"))
    for _ in range(2):  # The second time nothing is learnt any more.
        assert_same(FUNCTIONS[name](build(rouse)), expected, name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_on_the_cpu(rouse: str, dtype: torch.dtype) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))

    def run(device: str) -> Any:
        model = layers.to(device)
        with torch.autocast(device, dtype=dtype), torch.no_grad():
            y = model(build(device))
            return y, y.softmax(-1), torch.cat([y, y.float()]), torch.nn.functional.mse_loss(y, y + 1)

    expected = run("cpu")
    assert_same(run(rouse), expected)


def test_inference_mode(rouse: str) -> None:
    with torch.inference_mode():
        x = build(rouse)
        y = x.view(-1)[2:].add_(1)
        assert y.is_inference()
        assert_same(y, build("cpu").view(-1)[2:].add_(1))


def test_an_operator_that_refuses_raises_at_its_line(rouse: str) -> None:
    x = build(rouse)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ x
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([x, torch.ones(4, 6)])
    assert_same(x + 1, build("cpu") + 1)


def test_a_failure_that_depends_on_data_surfaces_with_the_operators_name(rouse: str) -> None:
    from rouse_native import redirect

    table, good, bad = build(rouse), torch.tensor([0, 1], device=rouse), torch.tensor([0, 99], device=rouse)
    assert_same(torch.nn.functional.embedding(good, table), build("cpu")[:2])
    lost = torch.nn.functional.embedding(bad, table)  # Same shapes: sent without waiting.
    with pytest.raises(IndexError, match="aten::index_select"):
        redirect.synchronize()
    with pytest.raises(RuntimeError, match="failed"):
        lost.cpu()
    assert_same(table + 1, build("cpu") + 1)
    with redirect.blocking(), pytest.raises(IndexError, match="aten::index_select"):
        torch.nn.functional.embedding(bad, table)


def test_what_came_to_the_device_after_a_failure_is_not_read(rouse: str) -> None:
    from rouse_native import redirect

    table, good, bad = build(rouse), torch.tensor([0, 1], device=rouse), torch.tensor([0, 99], device=rouse)
    torch.nn.functional.embedding(good, table)
    before = torch.zeros(4, 6, device=rouse)
    torch.nn.functional.embedding(bad, table)
    late = torch.ones(3).to(rouse)  # The executor skips it, as it skips all that comes after an error.
    before.copy_(torch.ones(4, 6))
    with pytest.raises(IndexError, match="aten::index_select"):
        redirect.synchronize()
    with pytest.raises(RuntimeError, match="failed"):
        late.cpu()
    assert_same(before, torch.zeros(4, 6))
    assert_same(torch.ones(3).to(rouse), torch.ones(3))


def test_what_cannot_be_redirected_says_so(rouse: str) -> None:
    x = build(rouse)
    with pytest.raises(NotImplementedError, match="rouse"):
        x.to_sparse()
    assert_same(x, build("cpu"))


def test_templates_are_kept_for_the_next_process(rouse: str, tmp_path: Path) -> None:
    from rouse_native import redirect

    arithmetic(build(rouse))
    redirect.save_templates(tmp_path)
    assert redirect.load_templates(tmp_path) > 5
    next(tmp_path.iterdir()).write_bytes(b"rouse templates 1 " + b"\x40" * 9)
    with pytest.raises(ValueError, match="damaged"):
        redirect.load_templates(tmp_path)


def test_known_operators_are_not_waited_for(rouse: str) -> None:
    from rouse_native import redirect

    x = build(rouse)
    arithmetic(x)
    before = redirect.counters()
    arithmetic(x)
    after = redirect.counters()
    assert after["waits"] == before["waits"]
    assert after["calls"] > before["calls"]


def test_a_module_moves_there_and_back_and_is_saved(rouse: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(6, 3)
    expected = model.state_dict()
    there = torch.nn.Linear(6, 3).to(rouse)
    there.load_state_dict(expected)
    torch.save(there.state_dict(), tmp_path / "state")
    loaded = torch.load(tmp_path / "state", map_location="cpu")
    for name, value in expected.items():
        assert_same(loaded[name], value)
    assert "rouse" in repr(there.weight)


def test_a_dead_executor_is_an_error_not_a_wait() -> None:
    pytest.importorskip("rouse_native._redirect", reason="the native core is not built")
    from rouse_native import redirect

    with redirect.spawn_local() as session:
        x = build("rouse")
        assert session.pid
        os.kill(session.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="executor"):
            x.add(1).cpu()
    with redirect.spawn_local():
        with pytest.raises(RuntimeError, match="gone"):
            x + 1
        assert_same(moved(torch.ones(3), "rouse") * 2, torch.ones(3) * 2)

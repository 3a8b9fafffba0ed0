"""Two models that do not fit on the device together take turns on it, and nothing of that shows in the results."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertModel, ResNetForImageClassification

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import linear_weight, write_bert, write_linear, write_resnet

pytestmark = pytest.mark.timeout(300)
# A convolution's sums are split over the threads: equal to the bit only with as many as the device has.
DEVICE_THREADS = os.cpu_count() or 1


def natively_resnet(folder: Path, pixels: np.ndarray) -> np.ndarray:
    torch.set_num_threads(DEVICE_THREADS)
    with torch.inference_mode():
        return ResNetForImageClassification.from_pretrained(folder).eval()(torch.from_numpy(pixels)).logits.numpy()


def natively_bert(folder: Path, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    torch.set_num_threads(DEVICE_THREADS)
    with torch.inference_mode():
        model = BertModel.from_pretrained(folder, attn_implementation="sdpa").eval()
        return model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state.numpy()


def test_models_that_do_not_fit_together_alternate_and_equal_pytorch(tiny_mesh: Mesh, tmp_path: Path) -> None:
    client = tiny_mesh.client()
    resnet, bert = write_resnet(tmp_path / "resnet"), write_bert(tmp_path / "bert")
    client.deploy(resnet, name="resnet")
    client.deploy(bert, name="bert")
    sizes = {f.name: f.version.weights_bytes for f in client.functions() if f.version}
    assert max(sizes.values()) <= tiny_mesh.capacity_bytes < sum(sizes.values()), (
        "the device must be too small for both"
    )

    draw = np.random.default_rng(0)
    for turn in range(4):
        pixels = draw.standard_normal((2, 3, 64, 64), dtype=np.float32)
        ids = draw.integers(0, 8000, (2, 16))
        mask = np.ones_like(ids)
        mask[1, 10 + turn :] = 0
        got = client.infer("resnet", {"pixel_values": pixels})
        np.testing.assert_array_equal(got["logits"], natively_resnet(resnet, pixels))
        got = client.infer("bert", {"input_ids": ids, "attention_mask": mask})
        np.testing.assert_array_equal(got["last_hidden_state"], natively_bert(bert, ids, mask))
        assert got.device == "gpu0"

    # What a node says of itself comes with its next heartbeat.
    tiny_mesh.wait_until(partial(swapped_in, client, 7), "each turn had to swap")
    tiny_mesh.wait_until(partial(evicted_for, client, "resnet", "bert"), "describe says why resnet left the device")
    for name in ("resnet", "bert"):
        client.delete(name)


def swapped_in(client: rouse.Client, times: int) -> bool:
    (device,) = client.status().nodes[0].devices
    assert device.mapped_bytes <= device.capacity_bytes
    return device.swap_ins >= times


def evicted_for(client: rouse.Client, gone: str, other: str) -> bool:
    (row,) = client.describe(gone).residency
    return row.state == "HOST" and row.reason.startswith(f"evicted from gpu0: room for function={other}")


def counted(client: rouse.Client, name: str, requests: int) -> bool:
    return client.describe(name).usage.requests == requests


def test_concurrent_callers_of_three_models_each_get_their_own_answers(tiny_mesh: Mesh, tmp_path: Path) -> None:
    client = tiny_mesh.client()
    size, names = 1536, ["lin0", "lin1", "lin2"]  # 9 MiB each; the device holds two
    for seed, name in enumerate(names):
        client.deploy(write_linear(tmp_path / name, name, size, seed))

    def one(index: int) -> None:
        seed = index % 3
        x = np.random.default_rng(index).standard_normal((1, size), dtype=np.float32)
        got = client.infer(names[seed], {"x": x}, timeout=60)["y"]
        want = torch.from_numpy(x) @ linear_weight(size, seed).T
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(90)))
    for name in names:
        tiny_mesh.wait_until(partial(counted, client, name, 30), "every request is counted")
        assert client.describe(name).usage.failures == 0
        client.delete(name)


def test_a_model_larger_than_every_device_is_refused_with_the_sizes(tiny_mesh: Mesh, tmp_path: Path) -> None:
    client = tiny_mesh.client()
    before = tiny_mesh.footprint()
    folder = write_linear(tmp_path / "big", "big", 3000, 0)  # 34 MiB
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.deploy(folder)
    assert caught.value.reason == "MODEL_TOO_LARGE"
    assert "gpu0" in caught.value.message
    assert tiny_mesh.footprint() == before

"""Real instance processes of Python functions against a double of the coordinator."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rouse_common.errors import FailedPrecondition, Internal, InvalidArgument, RouseError
from rouse_contracts import device
from rouse_contracts.functions import Tensor, TensorBatch
from rouse_testkit import models
from rouse_testkit.artefacts import Staged, Tensors, stage
from rouse_testkit.instances import ONE, function, running, traces, until_line


def linear(tmp_path: Path, size: int = 64) -> Staged:
    folder = models.write_linear(tmp_path / "f", "f", size, seed=3)
    (tmp_path / "images").mkdir(exist_ok=True)
    return stage(
        folder, tmp_path / "images", name="f", handler="function:Function",
        inputs=[("x", "FP32", [-1, size])], outputs=[("y", "FP32", [-1, size])],
    )  # fmt: skip


def segment(staged: Staged, name: str = "segment") -> Path:
    """A device's copy of the weights."""
    assert staged.image is not None
    return Path(shutil.copy(staged.image, staged.image.with_name(name)))


async def test_a_function_without_weights_runs_under_any_lease(tmp_path: Path) -> None:
    instance = running(tmp_path, function(tmp_path, models.IDENTITY), ROUSE_INSTANCE_TRACE_DIR=str(tmp_path / "traces"))
    async with instance:
        assert instance.error == ""
        assert (await instance.infer({"x": np.array([1, 2], dtype=np.float32)}, lease="host/7"))["y"].tolist() == [1, 2]
    assert instance.process.returncode == 0
    assert not list((tmp_path / "run").glob("i1*"))
    (execute,) = traces(tmp_path, "execute")
    (server,) = traces(tmp_path, "Execute")
    assert execute["service"] == "executor"
    assert execute["parent_span_id"] == server["span_id"]
    assert execute["attributes"]["function"] == "f"


async def test_weights_follow_the_device_and_results_stay(tmp_path: Path) -> None:
    staged = linear(tmp_path)
    x = np.random.default_rng(0).random((2, 64), dtype=np.float32)
    want = x @ models.linear_weight(64, 3).numpy().T
    first, second = segment(staged, "s1"), segment(staged, "s2")
    async with running(tmp_path, staged) as instance:
        with pytest.raises(FailedPrecondition) as caught:
            await instance.infer({"x": x})
        assert caught.value.reason == "STALE_LEASE"

        await instance.attach(first, "a1")
        before = (await instance.infer({"x": x}, lease="a1/1"))["y"]
        np.testing.assert_allclose(before, want, rtol=1e-4, atol=1e-5)
        for lease in ("a1", "a2/1", "a11/1", ""):
            with pytest.raises(FailedPrecondition):
                await instance.infer({"x": x}, lease=lease)

        with pytest.raises(FailedPrecondition) as caught:
            await instance.attach(second, "a2")
        assert caught.value.reason == "ALREADY_ATTACHED"
        await instance.attach(first, "a1")  # the same again

        await instance.detach()
        await instance.detach()
        first.unlink()
        with pytest.raises(FailedPrecondition):
            await instance.infer({"x": x}, lease="a1/1")

        await instance.attach(second, "a2")
        after = (await instance.infer({"x": x}, lease="a2/1"))["y"]
        assert after.tobytes() == before.tobytes()
        # It is the device's memory that was read.
        second.write_bytes(bytes(second.stat().st_size))
        assert not (await instance.infer({"x": x}, lease="a2/2"))["y"].any()


async def test_a_segment_of_another_size_is_refused(tmp_path: Path) -> None:
    staged = linear(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.write_bytes(bytes(64 * 64 * 4 + 8192))
    async with running(tmp_path, staged) as instance:
        with pytest.raises(FailedPrecondition) as caught:
            await instance.attach(wrong)
        assert caught.value.reason == "SIZE_MISMATCH"
        with pytest.raises(Internal) as missing:
            await instance.attach(tmp_path / "nothing")
        assert missing.value.reason == "ATTACH_FAILED"
        await instance.attach(segment(staged))


async def test_what_user_code_raises_is_told_and_the_next_request_served(tmp_path: Path) -> None:
    staged = function(
        tmp_path,
        """
        import sys
        class Function:
            def predict(self, inputs):
                secret = "do not tell"
                value = int(inputs["x"][0])
                if value == 1:
                    raise ValueError("one is refused")
                if value == 2:
                    sys.exit(3)
                if value == 3:
                    {}["nothing"]
                print("served", value)
                return {"y": inputs["x"]}
        """,
    )
    async with running(tmp_path, staged) as instance:
        for value, text in (
            (1, "ValueError: one is refused (at function.py:8)"),
            (2, "SystemExit: 3 (at function.py:10)"),
            (3, "KeyError: missing key 'nothing' (at function.py:12)"),
        ):
            with pytest.raises(Internal) as caught:
                await instance.infer({"x": np.array([value], dtype=np.float32)})
            assert caught.value.reason == "FUNCTION_RAISED"
            assert caught.value.message.endswith(text)
            assert caught.value.metadata["function"] == "f"
            assert "do not tell" not in str(caught.value.metadata) + caught.value.message
        assert (await instance.infer({"x": np.array([4], dtype=np.float32)}))["y"].tolist() == [4]
    assert not any("do not tell" in line for line in instance.lines)
    assert any("function=f instance=i1 stdout: served 4" in line for line in instance.lines)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("inputs['x']", "want a dict"),
        ("{}", "returned no 'y'"),
        ("{'y': inputs['x'], 'z': inputs['x']}", "'z', which is not an output"),
        ("{'y': inputs['x'].astype('f8')}", "with datatype FP64, the signature says FP32"),
        ("{'y': inputs['x'].reshape(1, 1)}", "has shape [1, 1], the signature says [-1]"),
        ("{'y': [[1], [1, 2]]}", "cannot be made an array"),
        ("{'y': ['a']}", "'y'"),
        ("{'y': None}", "'y'"),
    ],
)
async def test_a_wrong_result_names_the_tensor(tmp_path: Path, expression: str, text: str) -> None:
    staged = function(
        tmp_path,
        f"""
        class Function:
            def predict(self, inputs):
                return {expression}
        """,
    )
    async with running(tmp_path, staged) as instance:
        with pytest.raises(Internal) as caught:
            await instance.infer(ONE)
        assert caught.value.reason == "BAD_RESULT"
        assert text in caught.value.message


async def test_lists_numbers_and_torch_tensors_are_results(tmp_path: Path) -> None:
    outputs: Tensors = [
        ("list", "FP32", [2]), ("number", "INT64", []), ("torch", "FP32", [1]), ("half", "BF16", [2]),
        ("text", "BYTES", [2]), ("flag", "BOOL", [1]),
    ]  # fmt: skip
    staged = function(
        tmp_path,
        """
        import torch
        class Function:
            def predict(self, inputs):
                assert torch.is_inference_mode_enabled()
                inputs["x"] += 1
                return {"list": [1, 2.5], "number": 7, "torch": torch.tensor([2.0], requires_grad=True),
                        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "text": ["a", "ä"], "flag": [True]}
        """,
        outputs,
    )
    async with running(tmp_path, staged) as instance:
        got = await instance.infer(ONE)
        assert list(got) == ["list", "number", "torch", "half", "text", "flag"]
        assert got["list"].tolist() == [1, 2.5]
        assert (got["number"].shape, int(got["number"])) == ((), 7)
        assert got["torch"].tolist() == [2]
        assert got["half"].tolist() == [1.5, -2]
        assert got["text"].tolist() == [b"a", "ä".encode()]
        assert got["flag"].tolist() == [True]
        assert list(await instance.infer(ONE, outputs=["text", "list"])) == ["text", "list"]
        with pytest.raises(InvalidArgument) as caught:
            await instance.infer(ONE, outputs=["none"])
        assert caught.value.reason == "UNKNOWN_OUTPUT"


async def test_inputs_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    staged = function(tmp_path, models.IDENTITY)
    good = Tensor(name="x", datatype="FP32", shape=[1], data=b"\0\0\0\0")
    async with running(tmp_path, staged) as instance:
        for data in (
            b"\xff\xff",
            TensorBatch(tensors=[Tensor(name="x", datatype="FP32", shape=[2], data=b"\0")]).SerializeToString(),
            TensorBatch(tensors=[good, good]).SerializeToString(),
            TensorBatch(tensors=[Tensor(name="z", datatype="FP32", shape=[0])]).SerializeToString(),
            TensorBatch(tensors=[Tensor(name="x", datatype="INT32", shape=[0])]).SerializeToString(),
        ):
            request = device.ExecuteRequest(lease_id="any", request_id="r", inputs=data)
            with pytest.raises(InvalidArgument) as caught:
                await instance.execute(request)
            assert caught.value.reason == "BAD_TENSOR"
        assert (await instance.infer(ONE))["y"].tolist() == [1]


LOAD = "class Function:\n    predict = print\n    def load(self, context):\n        "


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (
            "import no_such_lib\nclass Function: pass",
            "ModuleNotFoundError: No module named 'no_such_lib' (at function.py:1)",
        ),
        ("class Function:\n    def broken(:", "SyntaxError: invalid syntax (at function.py:2)"),
        ("class Other: pass", "has no class 'Function'"),
        ("class Function:\n    pass", "has no method predict"),
        ("class Function:\n    def __init__(self, x): ...\n    def predict(self, i): ...", "without arguments"),
        (LOAD + "raise SystemExit(2)", "SystemExit: 2 (at function.py:4)"),
        (LOAD + "context.path('../x')", "relative to the function's folder, without '..' (at function.py:4)"),
        (LOAD + "context.path('x')", "has no such file (at function.py:4)"),
    ],
)
async def test_a_load_error_says_what_and_where(tmp_path: Path, code: str, text: str) -> None:
    async with running(tmp_path, function(tmp_path, code)) as instance:
        assert text in instance.error
        assert "\n" not in instance.error
        assert await instance.process.wait() == 3
    assert not list((tmp_path / "run").glob("i1*"))


async def test_a_module_from_outside_is_not_the_function(tmp_path: Path) -> None:
    staged = function(tmp_path, models.IDENTITY)
    for name in ("json", "torchgen.model"):  # a library's module, whether imported already or not
        staged.version.spec.handler = f"{name}:Function"
        async with running(tmp_path, staged) as instance:
            assert f"'{name}'" in instance.error
            assert await instance.process.wait() == 3


BINDING = """
    import torch
    class Function:
        def load(self, context):
            self.layer = torch.nn.Linear({size}, {size}, bias={bias}, device="meta")
            {before}
            context.bind(self.layer, "weights.safetensors")
            {after}
        def predict(self, inputs):
            return {{"y": self.layer(torch.from_numpy(inputs["x"]))}}
"""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"size": 32}, "weight [64, 64] where the module has [32, 32]"),
        ({"bias": True}, "missing in the file: bias"),
        ({"after": "self.layer.weight.add_(1)"}, "wrote to 16384 bytes of the mapped weights"),
        ({"before": "context.bind(self.layer, 'other')"}, "'other' is not a safetensors file"),
    ],
)
async def test_binding_that_does_not_fit_is_a_load_error(tmp_path: Path, values: dict[str, Any], text: str) -> None:
    models.write_linear(tmp_path / "f", "f", 64, seed=3)
    staged = function(tmp_path, BINDING.format(**({"size": 64, "bias": False, "before": "", "after": ""} | values)))
    async with running(tmp_path, staged) as instance:
        assert text in instance.error


async def test_a_write_to_attached_weights_ends_the_process_with_a_report(tmp_path: Path) -> None:
    models.write_linear(tmp_path / "f", "f", 64, seed=3)
    code = BINDING.format(size=64, bias=False, before="", after="").replace(
        "return", "self.layer.weight.add_(1); return"
    )
    staged = function(tmp_path, code)
    copy = segment(staged)
    async with running(tmp_path, staged) as instance:
        await instance.attach(copy)
        with pytest.raises(RouseError):
            await instance.infer({"x": np.zeros(64, dtype=np.float32)})
        assert await instance.process.wait() == -signal.SIGSEGV
    assert any("Segmentation fault" in line for line in instance.lines)
    assert any("function.py" in line for line in instance.lines)
    assert staged.image is not None
    assert copy.read_bytes() == staged.image.read_bytes()


async def test_sigterm_ends_an_instance_that_never_finishes_loading(tmp_path: Path) -> None:
    staged = function(
        tmp_path,
        """
        import threading
        class Function:
            def load(self, context):
                print("loading")
                threading.Event().wait()
            def predict(self, inputs): ...
        """,
    )
    instance = running(tmp_path, staged)
    entering = asyncio.create_task(instance.__aenter__())
    await until_line(instance, "loading")
    instance.process.send_signal(signal.SIGTERM)
    assert await instance.process.wait() == 0
    with pytest.raises(AssertionError, match="did not report"):
        await entering

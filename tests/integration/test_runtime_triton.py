"""Models of Triton's Python backend in real instance processes, unchanged."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

import rouse
from rouse_common.errors import Internal
from rouse_contracts.arrays import from_batch, to_batch
from rouse_contracts.device import ExecuteRequest
from rouse_contracts.functions import Parameter, RequestOptions, TensorBatch
from rouse_contracts.functions import Sequence as SequenceMessage
from rouse_testkit.artefacts import Staged, Tensors, stage
from rouse_testkit.instances import running

# After the examples of https://github.com/triton-inference-server/python_backend (add_sub, decoupled/repeat).
ADD_SUB = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from helper import difference

    class TritonPythonModel:
        def initialize(self, args):
            self.model_config = model_config = json.loads(args["model_config"])
            output0_config = pb_utils.get_output_config_by_name(model_config, "OUTPUT0")
            self.output0_dtype = pb_utils.triton_string_to_numpy(output0_config["data_type"])
            assert model_config["max_batch_size"] == 8 and output0_config["dims"] == [4]
            assert model_config["parameters"]["scale"]["string_value"] == "1"
            assert args["model_version"] == "2"
            assert open(args["model_repository"] + "/2/notes.txt").read() == "beside"
            assert not pb_utils.using_decoupled_model_transaction_policy(model_config)

        def execute(self, requests):
            responses = []
            for request in requests:
                in_0 = pb_utils.get_input_tensor_by_name(request, "INPUT0")
                in_1 = pb_utils.get_input_tensor_by_name(request, "INPUT1")
                if (in_0.as_numpy() < 0).any():
                    error = pb_utils.TritonError("no negative numbers", pb_utils.TritonError.INVALID_ARG)
                    responses.append(pb_utils.InferenceResponse(output_tensors=[], error=error))
                    continue
                out_0, out_1 = in_0.as_numpy() + in_1.as_numpy(), difference(in_0.as_numpy(), in_1.as_numpy())
                said = [request.request_id(), request.parameters(), request.correlation_id(), request.flags()]
                pb_utils.Logger.log_info(f"asked {json.dumps(said)}")
                responses.append(pb_utils.InferenceResponse(output_tensors=[
                    pb_utils.Tensor("OUTPUT0", out_0.astype(self.output0_dtype)),
                    pb_utils.Tensor("OUTPUT1", out_1.astype(self.output0_dtype)),
                ]))
            return responses

        def finalize(self):
            print("Cleaning up...")
"""
REPEAT = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                if pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0] < 0:
                    raise ValueError("negative")
                thread = threading.Thread(target=self.respond, args=(request.get_response_sender(), request))
                thread.daemon = True
                thread.start()
            return None

        def respond(self, sender, request):
            for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
PAIR = """
name: "pair" backend: "python" max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 4 ] }]
output [{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 4 ] }]
parameters { key: "scale" value { string_value: "1" } }
"""
ONE_BY_ONE = """
model_transaction_policy { decoupled: true }
input [{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }]
"""


def staged(tmp_path: Path, config: str, **files: str) -> Staged:
    """What deploying tmp_path/f makes of it; `files` are those of version 2, "_" standing for "."."""
    code = tmp_path / "f" / "2"
    code.mkdir(parents=True)
    (tmp_path / "images").mkdir()
    for name, text in files.items():
        (code / name.replace("_", ".")).write_text(textwrap.dedent(text))
    (tmp_path / "f" / "config.pbtxt").write_text(config)
    manifest = rouse.read_package(tmp_path / "f").manifest
    inputs, outputs = (
        [(spec.name, spec.datatype, list(spec.shape)) for spec in specs]
        for specs in (manifest.inputs, manifest.outputs)
    )
    made: tuple[Tensors, Tensors] = (inputs, outputs)
    version = stage(
        tmp_path / "f", tmp_path / "images", name="f", inputs=made[0], outputs=made[1], handler=manifest.handler,
        options=dict(manifest.options or {}),
    )  # fmt: skip
    version.version.spec.decoupled = manifest.decoupled
    return version


HELPER = "def difference(a, b):\n    return a - b\n"


async def test_a_model_with_an_answer_to_each_request(tmp_path: Path) -> None:
    version = staged(tmp_path, PAIR, model_py=ADD_SUB, helper_py=HELPER, notes_txt="beside")
    a, b = np.arange(8, dtype=np.int32).reshape(2, 4), np.ones((2, 4), np.int32)
    async with running(tmp_path, version) as instance:
        assert instance.error == ""
        options = RequestOptions(
            sequence=SequenceMessage(id="42", start=True), parameters={"p": Parameter(int64_value=1)}
        )
        inputs = to_batch({"INPUT0": a, "INPUT1": b}).SerializeToString()
        request = ExecuteRequest(lease_id="a1/1", request_id="r1", inputs=inputs, options=options, rows=2)
        got = from_batch(TensorBatch.FromString((await instance.execute(request, 30)).outputs))
        assert (got["OUTPUT0"].tolist(), got["OUTPUT1"].tolist()) == ((a + b).tolist(), (a - b).tolist())
        with pytest.raises(Internal, match="no negative numbers") as caught:
            await instance.infer({"INPUT0": -b, "INPUT1": b})
        assert caught.value.reason == "FUNCTION_RAISED"
    assert any('asked ["r1", "{\\"p\\": 1}", 42, 1]' in line for line in instance.lines)
    assert any("stdout: Cleaning up..." in line for line in instance.lines)


async def test_a_decoupled_model(tmp_path: Path) -> None:
    async with running(tmp_path, staged(tmp_path, ONE_BY_ONE, model_py=REPEAT)) as instance:
        assert instance.error == ""
        for values in ([4, 2, 0, 1, 7], [3]):
            inputs = to_batch({"IN": np.array(values, dtype=np.int32)}).SerializeToString()
            request = ExecuteRequest(lease_id="a1/1", request_id="r1", inputs=inputs)
            *answers, last = [answer async for answer in instance.stream(request, 30)]
            got = [from_batch(TensorBatch.FromString(answer.outputs))["OUT"].tolist() for answer in answers]
            assert got == [[value] for value in values]
            assert last.outputs == b""
        request.inputs = to_batch({"IN": np.array([-1], dtype=np.int32)}).SerializeToString()
        with pytest.raises(Internal, match=r"ValueError: negative \(at 2/model.py:10\)"):
            [answer async for answer in instance.stream(request, 30)]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("class TritonPythonModel: pass", "has no method execute"),
        ("class Other: pass", "has no class 'TritonPythonModel'"),
        (
            """
            import triton_python_backend_utils as pb_utils
            class TritonPythonModel:
                def initialize(self, args):
                    pb_utils.MetricFamily()
                def execute(self, requests): ...
            """,
            "MetricFamily is not supported by Rouse (at 2/model.py:5)",
        ),
    ],
)
async def test_what_does_not_load_says_why(tmp_path: Path, code: str, text: str) -> None:
    async with running(tmp_path, staged(tmp_path, ONE_BY_ONE, model_py=code)) as instance:
        assert text in instance.error

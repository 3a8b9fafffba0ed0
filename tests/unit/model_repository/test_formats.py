"""What kind of artefact it is, and what its descriptions say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rouse_common.errors import InvalidArgument
from rouse_contracts.functions import (
    ARTEFACT_FORMAT_HUGGING_FACE,
    ARTEFACT_FORMAT_PYTHON,
    ARTEFACT_FORMAT_TORCH_EXPORT,
)
from rouse_model_repository.inspection import formats
from rouse_model_repository.inspection.signatures import TASKS, derive

ARCHITECTURES = {"architectures": ["BertModel"]}
HANDLER = {"handler": "main:F"}


@pytest.mark.parametrize(
    ("paths", "config", "manifest", "wanted"),
    [
        (["config.json", "model.safetensors"], ARCHITECTURES, {}, ARTEFACT_FORMAT_HUGGING_FACE),
        (["config.json", "model.safetensors", "modeling.py"], ARCHITECTURES, {}, ARTEFACT_FORMAT_HUGGING_FACE),
        (["config.json", "model.safetensors", "main.py"], ARCHITECTURES, HANDLER, ARTEFACT_FORMAT_PYTHON),
        (["config.json", "model.safetensors"], ARCHITECTURES, {"inputs": []}, ARTEFACT_FORMAT_HUGGING_FACE),
        (["rouse.toml", "main.py"], {}, HANDLER, ARTEFACT_FORMAT_PYTHON),
        (["main.py"], {}, {}, ARTEFACT_FORMAT_PYTHON),
        (["program.json", "weights.safetensors"], {}, {}, ARTEFACT_FORMAT_TORCH_EXPORT),
        (["program.json", "export.py"], {}, {}, ARTEFACT_FORMAT_TORCH_EXPORT),
        (["program.json", "main.py"], {}, HANDLER, ARTEFACT_FORMAT_PYTHON),
        (["main.py", "config.json"], ARCHITECTURES, {}, ARTEFACT_FORMAT_PYTHON),
        (["a/b.py", "config.json", "w.safetensors"], {"architectures": []}, {}, ARTEFACT_FORMAT_PYTHON),
    ],
)
def test_formats(paths: list[str], config: dict[str, Any], manifest: dict[str, Any], wanted: int) -> None:
    assert formats.decide(paths, config, manifest) == wanted


@pytest.mark.parametrize(
    ("paths", "config", "says"),
    [
        (["config.json"], ARCHITECTURES, "safetensors"),
        (["config.json", "w.safetensors"], {}, "architectures"),
        (["w.safetensors"], {}, "neither"),
        (["README.md"], {}, "neither"),
    ],
)
def test_what_is_no_artefact(paths: list[str], config: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        formats.decide(paths, config, {})
    assert caught.value.reason == "BAD_ARTEFACT"


@pytest.mark.parametrize("names", [None, [], [1], ["a b"], ["x" * 300], "BertModel", [["BertModel"]], ["\ud800"]])
def test_names_that_are_no_class(names: Any) -> None:
    assert formats.architecture({"architectures": names}) == ""


def test_an_index_must_tell_the_truth() -> None:
    found = {"w/1.safetensors": {"a"}, "w/2.safetensors": {"b"}}
    good = {"a": "1.safetensors", "b": "2.safetensors"}
    formats.check_index("w/model.safetensors.index.json", {"weight_map": good}, found)
    wrong_maps: list[Any] = [[], {"a": "2.safetensors"}, {"a": "3"}, {"a": 1}, {"\ud800": "1.safetensors"}]
    wrongs: list[dict[str, Any]] = [{}, *({"weight_map": wrong} for wrong in wrong_maps)]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument) as caught:
            formats.check_index("w/model.safetensors.index.json", wrong, found)
        assert caught.value.reason == "BAD_ARTEFACT"
        caught.value.message.encode()


def test_a_declared_signature() -> None:
    manifest = formats.load_manifest(
        b'[[inputs]]\nname="x"\ndatatype="FP32"\nshape=[-1, 3]\n[[outputs]]\nname="y"\ndatatype="BYTES"\nshape=[]\n'
    )
    signature = formats.declared_signature(manifest)
    assert [(t.name, t.datatype, list(t.shape)) for t in signature.inputs] == [("x", "FP32", [-1, 3])]
    assert [(t.name, t.datatype, list(t.shape)) for t in signature.outputs] == [("y", "BYTES", [])]


@pytest.mark.parametrize(
    "row",
    ["x", {}, {"name": "x"}, {"name": "", "datatype": "FP32", "shape": []},
     {"name": 1, "datatype": "FP32", "shape": []},
     {"name": "x", "datatype": "float", "shape": []}, {"name": "x", "datatype": "FP32", "shape": [-2]},
     {"name": "x", "datatype": "FP32", "shape": [1.5]}, {"name": "x", "datatype": "FP32", "shape": [True]},
     {"name": "x", "datatype": "FP32", "shape": 3}, {"name": "x", "datatype": "FP32", "shape": [1] * 33},
     {"name": "x", "datatype": "FP32", "shape": [1 << 70]}, {"name": "x", "datatype": ["FP32"], "shape": []}],
)  # fmt: skip
def test_bad_tensors(row: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        formats.declared_signature({"inputs": [row]})
    assert caught.value.reason == "BAD_SPEC"


def test_two_tensors_of_one_name() -> None:
    row = {"name": "x", "datatype": "FP32", "shape": []}
    with pytest.raises(InvalidArgument, match="two inputs"):
        formats.declared_signature({"inputs": [row, row]})


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for load in (formats.load_manifest, lambda data: formats.load_json("x", data)):
        try:
            loaded = load(data)
        except InvalidArgument:
            continue
        assert isinstance(loaded, dict)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
KEYS = ("model_type", "vocab_size", "hidden_size", "image_size", "num_channels", "id2label", "num_labels",
        "hidden_sizes", "is_encoder_decoder", "max_length", "num_mel_bins", "text_config",
        "vision_config", "n_embd")  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([task[0] for task in TASKS]), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_configuration_gives_a_signature_or_none(suffix: str, config: dict[str, Any]) -> None:
    signature = derive(f"Some{suffix}", config)
    assert bool(signature.inputs) == bool(signature.outputs)
    for tensor in (*signature.inputs, *signature.outputs):
        assert all(size == -1 or size > 0 for size in tensor.shape)


def shapes(architecture: str, **config: Any) -> dict[str, list[int]]:
    signature = derive(architecture, config)
    return {tensor.name: list(tensor.shape) for tensor in (*signature.inputs, *signature.outputs)}


def test_signatures_of_families() -> None:
    text = {"input_ids": [-1, -1], "attention_mask": [-1, -1]}
    assert shapes("BertModel", model_type="bert", vocab_size=10, hidden_size=8) == {
        **text, "last_hidden_state": [-1, -1, 8],
    }  # fmt: skip
    assert shapes("GPT2LMHeadModel", model_type="gpt2", vocab_size=50) == {**text, "logits": [-1, -1, 50]}
    assert shapes("ViTForImageClassification", model_type="vit", image_size=224, num_labels=5) == {
        "pixel_values": [-1, 3, 224, 224], "logits": [-1, 5],
    }  # fmt: skip
    assert shapes("SwinForImageClassification", image_size=[64, 32], num_channels=1, id2label={"0": "a"}) == {
        "pixel_values": [-1, 1, 64, 32], "logits": [-1, 1],
    }  # fmt: skip
    assert shapes("Wav2Vec2ForCTC", model_type="wav2vec2", vocab_size=32) == {
        "input_values": [-1, -1], "logits": [-1, -1, 32],
    }  # fmt: skip
    for unknown in ("T5ForConditionalGeneration", "Novel", "BertForPreTraining"):
        assert shapes(unknown, model_type="x", vocab_size=10) == {}
    assert shapes("T5EncoderModel", model_type="t5", vocab_size=10, is_encoder_decoder=True) == {}

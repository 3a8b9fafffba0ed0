"""The signatures derived from config.json, against what transformers' models really take and give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rouse_contracts.functions import TensorSpec
from rouse_model_repository.inspection.signatures import derive

TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 32,
         "patch_size": 8}  # fmt: skip
SOUND = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40,
         "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}  # fmt: skip
CONVOLUTIONS = {"embedding_size": 16, "hidden_sizes": [16, 24], "depths": [1, 1]}
# Any size: what a caller may choose.
CHOSEN = {"input_ids": 7, "attention_mask": 7, "pixel_values": 32, "input_values": 4000}

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("BertModel", "BertConfig", TEXT),
    ("BertForMaskedLM", "BertConfig", TEXT),
    ("BertForSequenceClassification", "BertConfig", TEXT | {"num_labels": 3}),
    ("BertForTokenClassification", "BertConfig", TEXT | {"num_labels": 5}),
    ("BertForQuestionAnswering", "BertConfig", TEXT),
    ("DistilBertModel", "DistilBertConfig", {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}),
    ("RobertaModel", "RobertaConfig", TEXT),
    ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50}),
    ("GPT2Model", "GPT2Config", {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 50}),
    ("LlamaForCausalLM", "LlamaConfig", TEXT),
    ("Qwen2ForCausalLM", "Qwen2Config", TEXT | {"num_key_value_heads": 2}),
    ("ViTModel", "ViTConfig", IMAGE),
    ("ViTForImageClassification", "ViTConfig", IMAGE | {"num_labels": 4}),
    ("Dinov2Model", "Dinov2Config", IMAGE),
    ("ResNetModel", "ResNetConfig", CONVOLUTIONS),
    ("ResNetForImageClassification", "ResNetConfig", CONVOLUTIONS | {"num_labels": 6, "num_channels": 1}),
    ("ConvNextForImageClassification", "ConvNextConfig", {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}),
    ("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}),
    ("RegNetModel", "RegNetConfig", CONVOLUTIONS | {"hidden_sizes": [16, 16, 24, 24], "depths": [1, 1, 1, 1],
                                                    "groups_width": 8}),
    ("Wav2Vec2ForCTC", "Wav2Vec2Config", SOUND),
    ("Wav2Vec2Model", "Wav2Vec2Config", SOUND),
    ("HubertForSequenceClassification", "HubertConfig", SOUND | {"num_labels": 3}),
    ("ASTForAudioClassification", "ASTConfig", {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                                                "intermediate_size": 32, "max_length": 64, "num_mel_bins": 32}),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "config_class", "settings"), CASES, ids=[case[0] for case in CASES])
def test_a_model_gives_what_its_signature_says(architecture: str, config_class: str, settings: dict[str, Any]) -> None:
    import torch
    import transformers

    config = getattr(transformers, config_class)(**settings)
    model = getattr(transformers, architecture)(config).eval()
    # As save_pretrained writes it: only what differs from the class's defaults may be there.
    signature = derive(architecture, json.loads(config.to_json_string()))
    assert signature.inputs
    with torch.no_grad():
        result = model(**{tensor.name: example(tensor) for tensor in signature.inputs})
    for tensor in signature.outputs:
        shape = tuple(result[tensor.name].shape)
        assert len(shape) == len(tensor.shape), f"{tensor.name}: {shape} is not {list(tensor.shape)}"
        assert all(want in (-1, size) for want, size in zip(tensor.shape, shape, strict=True)), (
            f"{tensor.name}: {shape} is not {list(tensor.shape)}"
        )


def example(tensor: TensorSpec) -> Any:
    """A tensor of the shape, in a batch of two."""
    import torch

    shape = [2, *(CHOSEN[tensor.name] if size == -1 else size for size in list(tensor.shape)[1:])]
    return torch.ones(shape, dtype=torch.int64) if tensor.datatype == "INT64" else torch.randn(shape)

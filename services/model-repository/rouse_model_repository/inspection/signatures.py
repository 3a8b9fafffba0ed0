"""The tensors that a Hugging Face model takes and gives, read off its config.json without importing anything.

The architecture's name ends with its task ("BertForMaskedLM"); what it looks at (images, text, sound) shows in
the configuration. Where that does not settle it the signature is empty, and the owner gives one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rouse_contracts.functions import Signature

Config = Mapping[str, Any]
Tensors = list[tuple[str, str, list[int]]]
ANY = -1

# Model types whose last_hidden_state is a map of features [batch, channels, height, width].
CONVOLUTIONAL = frozenset(
    {"resnet", "convnext", "convnextv2", "regnet", "mobilenet_v1", "mobilenet_v2", "efficientnet", "poolformer", "van",
     "mobilevit", "mobilevitv2"}
)  # fmt: skip
PATCHES = frozenset(
    {"vit", "deit", "beit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit_msn", "data2vec-vision", "swin",
     "swinv2", "siglip_vision_model", "clip_vision_model"}
)  # fmt: skip
WAVEFORM = frozenset(
    {"wav2vec2", "wav2vec2-conformer", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "sew",
     "sew-d"}
)  # fmt: skip
SPECTROGRAM = frozenset({"audio-spectrogram-transformer"})


def derive(architecture: str, config: Config) -> Signature:
    """The signature of a model, empty where it is not known."""
    if config.get("is_encoder_decoder") is True:
        return Signature()
    for suffix, inputs_of, outputs_of in TASKS:
        if architecture.endswith(suffix):
            inputs, outputs = inputs_of(config), outputs_of(config)
            return _signature(inputs, outputs) if inputs and outputs else Signature()
    return Signature()


def _signature(inputs: Tensors, outputs: Tensors) -> Signature:
    signature = Signature()
    for tensors, into in ((inputs, signature.inputs), (outputs, signature.outputs)):
        for name, datatype, shape in tensors:
            into.add(name=name, datatype=datatype, shape=shape)
    return signature


def _kind(config: Config) -> str:
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else ""


def _size(value: Any, default: int = ANY) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
    return value if good else default


# ---- What goes in ------------------------------------------------------------------------------


def _image(config: Config) -> Tensors:
    size = config.get("image_size")
    if isinstance(size, list | tuple) and len(size) == 2:
        height, width = _size(size[0]), _size(size[1])
    elif isinstance(size, dict):
        height, width = _size(size.get("height")), _size(size.get("width"))
    else:
        height = width = _size(size)
    return [("pixel_values", "FP32", [ANY, _size(config.get("num_channels"), 3), height, width])]


def _text(config: Config) -> Tensors:
    if _size(config.get("vocab_size")) == ANY or _sees(config) or _hears(config):
        return []
    return [("input_ids", "INT64", [ANY, ANY]), ("attention_mask", "INT64", [ANY, ANY])]


def _sound(config: Config) -> Tensors:
    if _kind(config) in WAVEFORM:
        return [("input_values", "FP32", [ANY, ANY])]
    if _kind(config) in SPECTROGRAM:
        frames, bins = _size(config.get("max_length")), _size(config.get("num_mel_bins"))
        return [("input_values", "FP32", [ANY, frames, bins])]
    return []


def _sees(config: Config) -> bool:
    return _kind(config) in CONVOLUTIONAL | PATCHES or "vision_config" in config


def _hears(config: Config) -> bool:
    return _kind(config) in WAVEFORM | SPECTROGRAM


def _any_input(config: Config) -> Tensors:
    if "text_config" in config or "vision_config" in config:
        return []
    if _kind(config) in CONVOLUTIONAL | PATCHES:
        return _image(config)
    return _sound(config) or _text(config)


def _language(config: Config) -> Tensors:
    return _sound(config) or _text(config)


# ---- What comes out ----------------------------------------------------------------------------


def _labels(config: Config) -> int:
    names = config.get("id2label")
    # transformers' own default is two labels.
    return len(names) if isinstance(names, dict) and names else _size(config.get("num_labels"), 2)


def _vocabulary(config: Config) -> int:
    return _size(config.get("vocab_size"))


def _hidden(config: Config) -> Tensors:
    kind = _kind(config)
    width = _size(config.get("hidden_size", config.get("n_embd", config.get("d_model", config.get("dim")))))
    if kind in CONVOLUTIONAL:
        sizes = config.get("hidden_sizes")
        channels = _size(sizes[-1]) if isinstance(sizes, list) and sizes else ANY
        return [("last_hidden_state", "FP32", [ANY, channels, ANY, ANY])]
    return [("last_hidden_state", "FP32", [ANY, ANY, width])]


def _class_logits(config: Config) -> Tensors:
    return [("logits", "FP32", [ANY, _labels(config)])]


def _token_logits(config: Config) -> Tensors:
    return [("logits", "FP32", [ANY, ANY, _labels(config)])]


def _vocabulary_logits(config: Config) -> Tensors:
    return [("logits", "FP32", [ANY, ANY, _vocabulary(config)])]


def _span_logits(config: Config) -> Tensors:
    return [("start_logits", "FP32", [ANY, ANY]), ("end_logits", "FP32", [ANY, ANY])]


def _map_logits(config: Config) -> Tensors:
    return [("logits", "FP32", [ANY, _labels(config), ANY, ANY])]


def _depth(config: Config) -> Tensors:
    return [("predicted_depth", "FP32", [ANY, ANY, ANY])]


TASKS: tuple[tuple[str, Callable[[Config], Tensors], Callable[[Config], Tensors]], ...] = (
    ("ForImageClassification", _image, _class_logits),
    ("ForSemanticSegmentation", _image, _map_logits),
    ("ForDepthEstimation", _image, _depth),
    ("ForAudioClassification", _sound, _class_logits),
    ("ForSequenceClassification", _language, _class_logits),
    ("ForTokenClassification", _text, _token_logits),
    ("ForQuestionAnswering", _text, _span_logits),
    ("ForMaskedLM", _text, _vocabulary_logits),
    ("ForCausalLM", _text, _vocabulary_logits),
    ("LMHeadModel", _text, _vocabulary_logits),
    ("ForCTC", _sound, _vocabulary_logits),
    ("Model", _any_input, _hidden),
)

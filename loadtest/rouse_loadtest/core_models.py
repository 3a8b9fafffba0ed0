"""The models that the native core is measured with: transformers' own code, random weights, fixed seeds.

Three at the size at which people serve them, and the same graphs at tiny widths and lengths, where launching operators
is the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MODELS = ("resnet152_224", "resnet152_tiny", "bert_128", "bert_tiny", "llama_64", "llama_tiny")


@dataclass(frozen=True)
class Built:
    """A model in evaluation mode on the CPU, its inputs, and what of its output counts."""

    module: Any
    inputs: dict[str, Any]
    result: Callable[[Any], Any]


def is_tiny(name: str) -> bool:
    return name.endswith("_tiny")


def build(name: str) -> Built:
    """One of MODELS. Raises KeyError for another name."""
    import torch
    import transformers as library

    transformers: Any = library  # Its configurations take what their own code names, not what they declare.
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    tiny = is_tiny(name)
    generator = torch.Generator().manual_seed(1)
    family = name.split("_")[0]
    if family == "resnet152":
        widths = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8]} if tiny else {}
        resnet = transformers.ResNetConfig(depths=[3, 8, 36, 3], num_labels=1000, **widths)
        pixels = torch.randn(1, 3, 32 if tiny else 224, 32 if tiny else 224, generator=generator)
        model = transformers.ResNetForImageClassification(resnet).eval()
        return Built(model, {"pixel_values": pixels}, lambda output: output.logits)
    if family == "bert":
        small = (
            {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100} if tiny else {}
        )
        words = torch.randint(0, 100, (1, 8 if tiny else 128), generator=generator)
        bert = transformers.BertModel(transformers.BertConfig(**small)).eval()
        return Built(bert, {"input_ids": words}, lambda output: output.last_hidden_state)
    if family == "llama":
        # 12 layers of 768: 110M parameters with this vocabulary.
        sizes = (32, 64, 100) if tiny else (768, 2048, 16_000)
        config = transformers.LlamaConfig(
            hidden_size=sizes[0], intermediate_size=sizes[1], vocab_size=sizes[2], num_hidden_layers=12,
            num_attention_heads=4 if tiny else 12, use_cache=False,
        )  # fmt: skip
        words = torch.randint(0, 100, (1, 8 if tiny else 64), generator=generator)
        llama = transformers.LlamaForCausalLM(config).eval()
        return Built(llama, {"input_ids": words}, lambda output: output.logits)
    raise KeyError(name)

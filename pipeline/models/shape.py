"""Sizes of a model, read from its config and from the headers of its weights. No tensor is loaded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.models.attention_layers import AttentionLayers, attention_layers
from pipeline.models.built import load_config
from pipeline.models.directory_checks import check_directory, unsupported
from pipeline.models.files import weight_files
from pipeline.models.model_json import CONFIG
from pipeline.models.safetensors_header import read_header

_PACKED = "U8"  # two 4-bit weights in each byte, where a `quant_state` stands beside the tensor
_QUANTIZED = (_PACKED, "I8", "F8_E4M3", "F8_E5M2")
# What bitsandbytes and FP8 checkpoints store beside a quantized weight `W`: scales, tables, the layout.
_BESIDE = re.compile(r"(?P<weight>.+)(\.absmax|\.quant_map|\.nested_absmax|\.nested_quant_map|_scale_inv|_format)")
_STATE = ".quant_state."


@dataclass(frozen=True)
class Weights:
    """Sizes from the headers of the safetensors files. `parameters`: those of the model, however they are stored; `bytes`: of
    all that is stored."""

    parameters: int
    bytes: int


def measure_weights(path: Path) -> Weights:
    """Count parameters and bytes of the files that are loaded, without loading a tensor."""
    entries = {name: entry for file in weight_files(path) for name, entry in read_header(file).items()}
    stored = {name: (entry.dtype, entry.elements) for name, entry in entries.items()}
    return Weights(_parameters(stored), sum(entry.bytes for entry in entries.values()))


def _parameters(stored: Mapping[str, tuple[str, int]]) -> int:
    """The parameters of a model with these stored tensors: quantized weights unpacked, without what stands beside them."""
    packed = {name.partition(_STATE)[0] for name in stored if _STATE in name}
    total = 0
    for name, (dtype, count) in stored.items():
        if not _stands_beside(name, stored):
            total += 2 * count if name in packed and dtype == _PACKED else count
    return total


def _stands_beside(name: str, stored: Mapping[str, tuple[str, int]]) -> bool:
    if _STATE in name:
        return True
    beside = _BESIDE.fullmatch(name)
    weight = beside["weight"] if beside else name.removesuffix("SCB") + "weight" if name.endswith(".SCB") else ""
    return stored.get(weight, ("", 0))[0] in _QUANTIZED


@dataclass(frozen=True)
class Shape:
    """The sizes from a model's config that the pair stage needs."""

    logits_width: int  # vocabulary size, often padded beyond the tokenizer's
    context: int  # maximum sequence length in tokens
    cache_elements_per_token: int  # KV-cache elements of one token
    attention: AttentionLayers


def find_width(path: Path, trust_remote_code: bool = False) -> int | None:
    """Columns of the logits of the model in a directory; None for a tokenizer's directory without a config."""
    return read_shape(path, trust_remote_code).logits_width if (path / CONFIG).is_file() else None


def read_shape(path: Path, trust_remote_code: bool = False) -> Shape:
    """The shape of the decoder in a model directory; for a multimodal model, of its text decoder.

    A model without attention, such as Mamba, has no KV cache. Raises UsageError for an unreadable config.
    """
    check_directory(path)
    config = load_config(path, trust_remote_code)
    try:
        text = config.get_text_config()
        if isinstance(text, dict):  # that transformers has not read
            raise ValueError(f"a `text_config`, which models of type {config.model_type} do not have")
        heads = getattr(text, "num_attention_heads", None)
        width = getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0)
        attention = attention_layers(text)
        elements = int(2 * attention.count * _key_heads(text) * width)
        context = int(getattr(text, "max_position_embeddings", None) or 2**31)
        return Shape(int(text.vocab_size), context, elements, attention)
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        raise unsupported(path, error, trust_remote_code) from error


def _key_heads(text: Any) -> int:
    """Heads of keys and values; of older models with one for all, `multi_query` says so."""
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return int(getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None) or 0)

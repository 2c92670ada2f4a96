"""Sizes of a model, read from its config and from the headers of its weights. No tensor is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.models.attention_layers import AttentionLayers, attention_layers
from pipeline.models.built import empty_model, load_config
from pipeline.models.directory_checks import check_directory, unsupported
from pipeline.models.files import weight_files
from pipeline.models.model_json import CONFIG, read_config
from pipeline.models.safetensors_header import read_header


@dataclass(frozen=True)
class Weights:
    """Sizes from the headers of the safetensors files. `parameters`: those of the model, however they are stored; `bytes`: of
    all that is stored."""

    parameters: int
    bytes: int


def measure_weights(path: Path, trust_remote_code: bool = False) -> Weights:
    """Count parameters and bytes of the files that are loaded, without loading a tensor. Where they are quantized, an element may
    hold several weights, or a scale: then the parameters of the built model are counted."""
    entries = [entry for file in weight_files(path) for entry in read_header(file).values()]
    parameters = sum(entry.elements for entry in entries)
    if (path / CONFIG).is_file() and read_config(path).is_quantized:
        built = empty_model(path, trust_remote_code)
        parameters = sum(weight.numel() for weight in built.parameters())
    return Weights(parameters, sum(entry.bytes for entry in entries))


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
        columns = int(text.vocab_size)
        is_latent = bool(getattr(text, "kv_lora_rank", None))
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        raise unsupported(path, error, trust_remote_code) from error
    if is_latent:
        elements = _latent_elements(empty_model(path, trust_remote_code))
    return Shape(columns, context, elements, attention)


def _latent_elements(model: Any) -> int:
    """KV-cache elements of one token where attention is latent: what keys and values are computed from, as engines and
    transformers store it. Some layers have two such modules, and some other ones none."""
    found = (module for module in model.modules() if isinstance(getattr(module, "kv_lora_rank", None), int))
    return sum(module.kv_lora_rank + module.qk_rope_head_dim for module in found)


def _key_heads(text: Any) -> int:
    """Heads of keys and values; of older models with one for all, `multi_query` says so."""
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return int(getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None) or 0)

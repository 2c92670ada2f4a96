"""Sizes of a model as transformers builds it, and of the files of its weights. No tensor is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.models.attention_layers import AttentionLayers, attention_configs, attention_layers
from pipeline.models.built import is_tied, load_config, name_of_head, read_only_empty_model
from pipeline.models.directory_checks import check_directory, unsupported
from pipeline.models.files import weight_files
from pipeline.models.fixed_rope import longest_with_short_factors
from pipeline.models.model_json import CONFIG
from pipeline.models.safetensors_header import read_header
from pipeline.models.tensor_ledger import stored_tensors


@dataclass(frozen=True)
class Weights:
    """The size of a model's weights. `parameters`: those of the loaded model, however they are stored and whatever stands beside
    them in the files; `bytes`: of all that is stored."""

    parameters: int
    bytes: int


def measure_weights(path: Path, trust_remote_code: bool = False) -> Weights:
    """Count parameters and bytes without loading a tensor. UsageError for a model that transformers does not build."""
    sizes = [entry.bytes for file in weight_files(path) for entry in read_header(file).values()]
    built = read_only_empty_model(path, trust_remote_code)
    parameters = sum(weight.numel() for weight in built.parameters())
    if is_tied(built) and _has_own_head(path, built):
        parameters += built.get_output_embeddings().weight.numel()
    return Weights(parameters, sum(sizes))


def _has_own_head(path: Path, built: Any) -> bool:
    """Whether the files of a model that its config ties have a head of other numbers: then transformers does not tie it."""
    stored, embedding = stored_tensors(path), built.get_input_embeddings()
    names = [
        f"{name_of_head(built)}.weight",
        *(f"{name}.weight" for name, module in built.named_modules() if module is embedding),
    ]
    head, *rows = (next((name for name in stored if name.endswith(wanted)), None) for wanted in names)
    return head is not None and all(row is not None and not stored.are_equal(head, row) for row in rows)


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
        attention = attention_layers(text)
        elements = sum(2 * _key_heads(layer) * _head_width(layer) for layer in attention_configs(text))
        context = int(getattr(text, "max_position_embeddings", None) or 2**31)
        context = min(context, longest_with_short_factors(text) or context)
        columns = int(text.vocab_size)
        is_latent = bool(getattr(text, "kv_lora_rank", None))
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        raise unsupported(path, error, trust_remote_code) from error
    if is_latent:
        elements = _latent_elements(read_only_empty_model(path, trust_remote_code))
    return Shape(columns, context, elements, attention)


def _latent_elements(model: Any) -> int:
    """KV-cache elements of one token where attention is latent: what keys and values are computed from, as engines and
    transformers store it. Some layers have two such modules, and some other ones none."""
    latent = (module for module in model.modules() if isinstance(getattr(module, "kv_lora_rank", None), int))
    return sum(module.kv_lora_rank + module.qk_rope_head_dim for module in latent)


def _head_width(text: Any) -> int:
    heads = getattr(text, "num_attention_heads", None)
    return int(getattr(text, "head_dim", None) or (text.hidden_size // heads if heads else 0))


def _key_heads(text: Any) -> int:
    """Heads of keys and values; of older models with one for all, `multi_query` reports it."""
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    return int(getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None) or 0)

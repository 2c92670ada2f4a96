"""A model as transformers builds it: its config, and the model itself without memory for its weights. Facts about a model are
read from these, because config.json may state something else, or nothing."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from pipeline.errors import UsageError
from pipeline.models.attention_layers import windows_without_size
from pipeline.models.directory_checks import unsupported
from pipeline.models.listed_files import ListedFiles
from pipeline.models.model_json import CONFIG, ModelConfig, config_values

_BITSANDBYTES = "bitsandbytes"  # whose two forms have names of their own there
_KEPT = 4  # a target, its draft and their forms
_kept: dict[str, Any] = {}  # models without memory for their weights, by their config as JSON


def load_config(path: Path, trust_remote_code: bool = False) -> Any:
    """The config of a model directory, by transformers. UnderstudyError, naming it, for one that does not fit its model type."""
    with ListedFiles(path, weights=False, trust_remote_code=trust_remote_code) as files:
        try:
            config = AutoConfig.from_pretrained(files, trust_remote_code=trust_remote_code, local_files_only=True)
        except Exception as error:  # of a stranger's config, transformers raises what it happens upon
            raise unsupported(path, error, trust_remote_code, files) from error
    config.name_or_path = str(path)
    text = config.get_text_config()
    if not isinstance(text, dict) and (name := windows_without_size(text)) is not None:
        raise UsageError(
            f"{path / CONFIG}: {name} is null or 0, and layers have a window of that size, in which a token sees nothing, or "
            f"everything, as an engine reads it; set the size, or state full attention ({name}: null, and no layer_types)"
        )
    return config


def empty_model(path: Path, trust_remote_code: bool = False) -> Any:
    """The model without memory for its weights (on the device `meta`), made in milliseconds. UsageError for a config of which
    transformers makes no causal language model: another kind of model, or a value that it does not have."""
    config = load_config(path, trust_remote_code)
    with ListedFiles(path, weights=False, trust_remote_code=trust_remote_code) as files:
        config.name_or_path = str(files)  # where transformers looks for the model's code
        try:
            with torch.device("meta"):
                return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        except Exception as error:  # as above
            raise unsupported(path, error, trust_remote_code, files) from error


def read_only_empty_model(path: Path, trust_remote_code: bool = False) -> Any:
    """As `empty_model`, for callers that do not change it: models of equal configs are one object, which is built once. A model
    with code of its own is built each time: the code may have changed."""
    if trust_remote_code:
        return empty_model(path, trust_remote_code)
    key = json.dumps(config_values(path))
    if (model := _kept.get(key)) is None:
        model = empty_model(path)
        while len(_kept) >= _KEPT:
            _kept.pop(next(iter(_kept)), None)
        _kept[key] = model
    return model


def is_tied(model: Any) -> bool:
    """Whether the output head of a built model is its embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and getattr(head, "weight", None) is getattr(embedding, "weight", head)


def name_of_head(model: Any) -> str:
    """The output head's name in a built model, which has one."""
    head = model.get_output_embeddings()
    return next(str(name) for name, module in model.named_modules() if module is head)


def state_tied(model: Any) -> None:
    """Let the model's config state whether its head is its embedding: what is made of the model and saved follows the config, and
    transformers keeps both where a tied model's files have a head of its own."""
    tied = is_tied(model)
    if getattr(model.config, "tie_word_embeddings", tied) != tied:
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = tied


def require_known_quantization(path: Path, config: ModelConfig) -> None:
    """UsageError for a checkpoint whose weights are quantized by a method that transformers does not have: it would load the
    stored numbers as they are."""
    method = config.quantization.method if config.quantization is not None else None
    if method is not None and method not in (*AUTO_QUANTIZATION_CONFIG_MAPPING, _BITSANDBYTES):
        raise UsageError(
            f"{path / CONFIG}: its weights are quantized by {method} (quantization_config.quant_method), which transformers does "
            "not have; serve it by an engine that has it (pair.target.source: server, generate.engine: server), or take a "
            "checkpoint in bfloat16"
        )


def decoder_layers(model: Any) -> tuple[str, nn.ModuleList] | None:
    """The list of the model's decoder layers, and its name in the model; None if there is no such list."""
    count, decoder = model.config.get_text_config().num_hidden_layers, set(model.get_decoder().modules())
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and module in decoder:
            return name, module
    return None

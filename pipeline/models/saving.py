"""Writes a model or a tokenizer that was made here: the only place that does.

Its generation config is written anew from stop tokens: that with which it was loaded may hold settings of sampling that
transformers loads and refuses to save, and no draft needs them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from pipeline.models.model_json import TOKENIZER_CONFIG, TOKENIZER_FORMAT, code_named_in
from pipeline.store.files import write_json

_KEPT = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("use_cache", "output_attentions", "output_hidden_states", "_from_model_config"),  # no settings of a generation
)


def save_model(model: Any, out: Path, stop_tokens: Sequence[int] | None = None, pad_token: int | None = None) -> None:
    """Write config, generation config and weights of `model` to `out`, as safetensors. `stop_tokens`, `pad_token`: in place of
    its own. The generation config has nothing but these and the first token of a text."""
    own_generation_config(model, stop_tokens, pad_token)
    model.save_pretrained(out)


def save_tokenizer(tokenizer: Any, out: Path) -> None:
    """Write the files of `tokenizer` to `out`, and its code, if it ships with any: transformers writes the name of its class in
    a form that it does not read."""
    tokenizer.save_pretrained(out)
    file = out / TOKENIZER_CONFIG
    named = code_named_in(out).get(file, [])
    if len(named) == 1:
        values = TOKENIZER_FORMAT.read(file).model_dump(exclude_unset=True)
        slow_and_fast = [None, *named] if tokenizer.is_fast else [*named, None]
        write_json(file, values | {"auto_map": {"AutoTokenizer": slow_and_fast}})


def own_generation_config(model: Any, stop_tokens: Sequence[int] | None = None, pad_token: int | None = None) -> None:
    """Give `model` the generation config that it is saved with."""
    given = getattr(model, "generation_config", None)
    kept = {name: getattr(given, name, None) for name in _KEPT}
    if stop_tokens is not None:
        kept["eos_token_id"] = list(stop_tokens)
    if pad_token is not None:
        kept["pad_token_id"] = model.config.pad_token_id = pad_token
    model.generation_config = GenerationConfig(**kept)

"""Small pairs of other families than Llama, made here from a few sentences in a minute: architectures of published models, whose
attention layers are of one kind or of several."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.segments_pair import chat_tokenizer, save_models, train
from tests.conformance.reasoning_pair import TOOLS, dialogue
from tests.conformance.subject import Subject

WINDOW = 16  # of a sliding attention, in tokens: shorter than every prompt
_COMMON = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the least that the attention of vLLM's CPU build takes
    "max_position_embeddings": 512,
    "bos_token_id": None,
}
_STEPS, _DIALOGUES, _PROMPTS = {"target": 100, "draft": 80}, 1500, 48


@dataclass(frozen=True)
class Shape:
    """A family as transformers names it, its layers, and settings of its config."""

    family: str
    layers: int
    settings: dict[str, Any]


def sliding(family: str, *windows: bool, size: int = WINDOW) -> Shape:
    """A layer for each of `windows`: whether it has one."""
    kinds = ["sliding_attention" if one else "full_attention" for one in windows]
    return Shape(family, len(kinds), {"sliding_window": size, "layer_types": kinds})


def full(family: str, layers: int) -> Shape:
    return Shape(family, layers, {})


def make_pair(place: Path, target: Shape, draft: Shape) -> Subject:
    """Train both on the same dialogues, and write `target/` and `draft/` to `place`."""
    import torch

    dialogues = [dialogue(number) for number in range(_DIALOGUES)]
    tokenizer = chat_tokenizer([json.dumps(TOOLS), *(f"{messages} {answer}" for messages, answer in dialogues)])

    def ids(messages: list[dict[str, Any]], answer: str) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) + answer
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    corpus = torch.tensor([one for messages, answer in dialogues for one in ids(messages, answer)])
    for name, shape in (("target", target), ("draft", draft)):
        model = _model(tokenizer, shape)
        train(model, corpus, _STEPS[name], 4e-3, 1)
        save_models(place, tokenizer, **{name: model})
    prompts = [np.array(ids(dialogue(_DIALOGUES + number)[0], ""), dtype=np.int32) for number in range(_PROMPTS)]
    stop = [tokenizer.eos_token_id]
    return Subject("", place / "target", place / "draft", place / "target", len(tokenizer), stop, prompts)


def _model(tokenizer: Any, shape: Shape) -> Any:
    import torch
    import transformers

    torch.manual_seed(shape.layers)
    config = getattr(transformers, f"{shape.family}Config")(
        **_COMMON
        | {
            "vocab_size": len(tokenizer),
            "num_hidden_layers": shape.layers,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        | shape.settings
    )
    return transformers.AutoModelForCausalLM.from_config(config)

"""The pair of the distillation benchmark: a target of seven domains, a base draft of the same family, and the target moved.

The target and the draft have read little of two domains; the move is a fine-tuning of the target on all of those two, as a
team does with the traffic of its product. Made once a machine, about 20 minutes on 2 cores; each finished part is a
directory renamed into place, so that an interrupted run goes on where it stopped.
"""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from pipeline.config.pair import DraftShape, ReferenceRecipe, TargetShape
from pipeline.models.devices import choose_device
from pipeline.progress import Progress
from pipeline.reference.recipe import ModelTraining, new_model, train_model, train_tokenizer, write_prompts
from pipeline.reference.text import Document
from tests.benchmarks.distillation.domains import DOMAINS, read_domain
from tests.benchmarks.distillation.place import PLACE

MOVED = ("chat", "json")
_KNOWN = 8  # one document of so many of a moved domain is read before the move
SEED = 0
PRUNED_LAYERS = 2
RECIPE = ReferenceRecipe(
    vocabulary=4096,
    context=256,
    batch=16,
    target=TargetShape(hidden=320, layers=6, heads=5, intermediate=864, steps=1500, learning_rate=4e-3),
    draft=DraftShape(hidden=160, layers=2, heads=5, intermediate=448, steps=1200, learning_rate=5e-3),
    fine_tune_steps=250,
    fine_tune_learning_rate=2e-3,
    prompts=4200,
    prompt_tokens=48,
)


def make_pair() -> None:
    """Write `target/`, `draft/`, `moved/` and `prompts.jsonl` under PLACE, unless they are there."""
    if (PLACE / "prompts.jsonl").exists():
        return
    for name in ("target", "draft", "moved"):
        _part(name)
    held_out = {name: [one for one in some if one.held_out] for name, some in _documents().items()}
    write_prompts(PLACE / "prompts.jsonl", held_out, _tokenizer(), RECIPE, SEED)


def make_alone() -> Path:
    """A draft with the shape of PRUNED_LAYERS of the target's layers, trained on text for as many steps as the base draft."""
    return _part("alone")


def _part(name: str) -> Path:
    directory, partial = PLACE / name, PLACE / f"{name}.partial"
    if not directory.exists():
        tokenizer = _tokenizer()
        begin, seed, steps, rate = _TRAININGS[name]
        training = ModelTraining(name, _tokens(moved=begin is None), steps, rate, seed)
        if begin is None:
            model = LlamaForCausalLM.from_pretrained(PLACE / "target", dtype=torch.float32)
        else:
            model = new_model(begin, RECIPE, tokenizer, seed)
        shutil.rmtree(partial, ignore_errors=True)
        train_model(model, training, RECIPE, choose_device("auto"), Progress()).save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(directory)
    return directory


_TRAININGS = {  # by part: shape (none: the target goes on), seed, steps, peak learning rate
    "target": (RECIPE.target, SEED, RECIPE.target.steps, RECIPE.target.learning_rate),
    "draft": (RECIPE.draft, SEED + 1, RECIPE.draft.steps, RECIPE.draft.learning_rate),
    "moved": (None, SEED + 2, RECIPE.fine_tune_steps, RECIPE.fine_tune_learning_rate),
    "alone": (
        RECIPE.target.model_copy(update={"layers": PRUNED_LAYERS}),
        SEED + 3,
        RECIPE.draft.steps,
        RECIPE.draft.learning_rate,
    ),
}


@cache
def _documents() -> dict[str, list[Document]]:
    return {name: read_domain(name) for name in DOMAINS}


@cache
def _tokenizer() -> Any:
    return train_tokenizer(_interleaved(_training()), RECIPE.vocabulary)


def _training() -> dict[str, list[Document]]:
    return {name: [one for one in some if not one.held_out] for name, some in _documents().items()}


def _tokens(moved: bool) -> torch.Tensor:
    """Of the moved domains in full, or of all domains with little of those."""
    train, tokenizer = _training(), _tokenizer()
    texts = (
        [train[name] for name in MOVED]
        if moved
        else [some[:: _KNOWN if name in MOVED else 1] for name, some in train.items()]
    )
    encoded = tokenizer([one.text for some in texts for one in some])["input_ids"]
    return torch.tensor([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)])


def _interleaved(train: dict[str, list[Document]]) -> list[str]:
    """Documents of all domains in turns: the tokenizer learns from the first few megabytes."""
    longest = max(map(len, train.values()))
    return [some[n].text for n in range(longest) for some in train.values() if n < len(some)]

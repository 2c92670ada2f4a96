"""The pair of the distillation benchmark: a target of seven domains, a stock draft of the same family, and the target moved.

Made once a machine, about 25 minutes on 2 cores; each finished part is a directory renamed into place, so that an
interrupted run goes on where it stopped.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from pipeline.config.pair import DraftShape, ReferenceRecipe, TargetShape
from pipeline.progress import Progress
from pipeline.reference.recipe import Course, new_model, train_model, train_tokenizer, write_prompts
from pipeline.reference.text import Document
from tests.benchmarks.distillation.domains import DOMAINS, MOVED, read_domain

_MEGABYTES = 2.0  # of each domain
RECIPE = ReferenceRecipe(
    vocabulary=4096,
    context=256,
    batch=16,
    target=TargetShape(hidden=320, layers=6, heads=5, intermediate=864, steps=1500, learning_rate=4e-3),
    draft=DraftShape(hidden=160, layers=2, heads=5, intermediate=448, steps=1200, learning_rate=5e-3),
    move_steps=250,
    move_learning_rate=2e-3,
    prompts=2100,
    prompt_tokens=48,
)


def make_pair(out: Path, seed: int, progress: Progress) -> None:
    """Write `target/`, `draft/`, `moved/` and `prompts.jsonl` under `out`."""
    documents = {name: read_domain(name, _MEGABYTES) for name in DOMAINS}
    train = {name: [one for one in some if not one.held_out] for name, some in documents.items()}
    tokenizer = train_tokenizer(_interleaved(train), RECIPE.vocabulary)

    def tokens(*names: str) -> torch.Tensor:
        encoded = tokenizer([one.text for name in names for one in train[name]])["input_ids"]
        return torch.tensor([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)])

    def part(name: str, begin: Callable[[], LlamaForCausalLM], course: Callable[[], Course]) -> None:
        directory, partial = out / name, out / f"{name}.partial"
        if directory.exists():
            return
        model = train_model(begin(), course(), RECIPE, torch.device("cpu"), progress)
        shutil.rmtree(partial, ignore_errors=True)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(directory)

    first, stock = RECIPE.target, RECIPE.draft
    part(
        "target",
        lambda: new_model(first, RECIPE, tokenizer, seed),
        lambda: Course("target", tokens(*DOMAINS), first.steps, first.learning_rate, seed),
    )
    part(
        "draft",
        lambda: new_model(stock, RECIPE, tokenizer, seed + 1),
        lambda: Course("stock draft", tokens(*DOMAINS), stock.steps, stock.learning_rate, seed + 1),
    )
    part(
        "moved",
        lambda: LlamaForCausalLM.from_pretrained(out / "target", dtype=torch.float32),
        lambda: Course("the target's move", tokens(*MOVED), RECIPE.move_steps, RECIPE.move_learning_rate, seed + 2),
    )
    held_out = {name: [one for one in some if one.held_out] for name, some in documents.items()}
    write_prompts(out / "prompts.jsonl", held_out, tokenizer, RECIPE, seed)


def _interleaved(train: dict[str, list[Document]]) -> list[str]:
    """Documents of all domains in turns: the tokenizer learns from the first few megabytes."""
    longest = max(map(len, train.values()))
    return [some[n].text for n in range(longest) for some in train.values() if n < len(some)]

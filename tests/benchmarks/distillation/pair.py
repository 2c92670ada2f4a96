"""The pair of the distillation benchmark: a target of seven domains, a stock draft of the same family, and the target moved.

The target and the draft have read little of two domains; the move is a fine-tuning of the target on all of those two, as a
team does with the traffic of its product. Made once a machine, about 20 minutes on 2 cores; each finished part is a
directory renamed into place, so that an interrupted run goes on where it stopped.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from pipeline.config.pair import DraftShape, ReferenceRecipe, TargetShape
from pipeline.progress import Progress
from pipeline.reference.recipe import Course, new_model, train_model, train_tokenizer, write_prompts
from pipeline.reference.text import Document
from tests.benchmarks.distillation.domains import DOMAINS, read_domain
from tests.benchmarks.figures import ROOT

PLACE = Path(os.environ.get("UNDERSTUDY_BENCH_DISTILL", ROOT / ".understudy" / "distill"))
TARGETS = {"near": "target", "moved": "moved"}  # by regime
MOVED = ("chat", "json")
_KNOWN = 8  # one document of so many of a moved domain is read before the move
SEED = 0
RECIPE = ReferenceRecipe(
    vocabulary=4096,
    context=256,
    batch=16,
    target=TargetShape(hidden=320, layers=6, heads=5, intermediate=864, steps=1500, learning_rate=4e-3),
    draft=DraftShape(hidden=160, layers=2, heads=5, intermediate=448, steps=1200, learning_rate=5e-3),
    move_steps=250,
    move_learning_rate=2e-3,
    prompts=4200,
    prompt_tokens=48,
)


def make_pair() -> None:
    """Write `target/`, `draft/`, `moved/` and `prompts.jsonl` under PLACE, unless they are there."""
    if (PLACE / "prompts.jsonl").exists():
        return
    PLACE.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    documents = {name: read_domain(name) for name in DOMAINS}
    train = {name: [one for one in some if not one.held_out] for name, some in documents.items()}
    before = {name: some[:: _KNOWN if name in MOVED else 1] for name, some in train.items()}
    tokenizer = train_tokenizer(_interleaved(train), RECIPE.vocabulary)

    def tokens(texts: dict[str, list[Document]]) -> torch.Tensor:
        encoded = tokenizer([one.text for some in texts.values() for one in some])["input_ids"]
        return torch.tensor([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)])

    def part(name: str, begin: Callable[[], LlamaForCausalLM], course: Callable[[], Course]) -> None:
        directory, partial = PLACE / name, PLACE / f"{name}.partial"
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
        lambda: new_model(first, RECIPE, tokenizer, SEED),
        lambda: Course("target", tokens(before), first.steps, first.learning_rate, SEED),
    )
    part(
        "draft",
        lambda: new_model(stock, RECIPE, tokenizer, SEED + 1),
        lambda: Course("stock draft", tokens(before), stock.steps, stock.learning_rate, SEED + 1),
    )
    part(
        "moved",
        lambda: LlamaForCausalLM.from_pretrained(PLACE / "target", dtype=torch.float32),
        lambda: Course(
            "the target's move",
            tokens({name: train[name] for name in MOVED}),
            RECIPE.move_steps,
            RECIPE.move_learning_rate,
            SEED + 2,
        ),
    )
    held_out = {name: [one for one in some if one.held_out] for name, some in documents.items()}
    write_prompts(PLACE / "prompts.jsonl", held_out, tokenizer, RECIPE, SEED)


def _interleaved(train: dict[str, list[Document]]) -> list[str]:
    """Documents of all domains in turns: the tokenizer learns from the first few megabytes."""
    longest = max(map(len, train.values()))
    return [some[n].text for n in range(longest) for some in train.values() if n < len(some)]

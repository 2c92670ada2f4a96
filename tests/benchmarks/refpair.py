"""The pair that benchmarks run on: target and candidate of a run of `reference_pair.yaml`, the quickstart's earlier recipe.

`UNDERSTUDY_BENCH_STORE` names its store; the default is `.understudy-benchmarks`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT
from tests.benchmarks.runs import understudy

_CONFIG = Path(__file__).with_name("reference_pair.yaml")


@dataclass(frozen=True)
class ReferencePair:
    """Where things lie, and what both models share."""

    root: Path  # the store
    run: str
    target: Path
    draft: Path  # the distilled candidate
    tokenizer: Path
    completions: Path
    vocabulary: int
    stop_tokens: list[int]

    def load(self, dtype: str) -> tuple[Any, Any]:
        """Target and draft on the CPU."""
        import torch

        from pipeline.models.loading import load_model

        return tuple(load_model(path, dtype, torch.device("cpu")) for path in (self.target, self.draft))


def bench_store() -> Path:
    """The store of the benchmarks' pair."""
    return Path(os.environ.get("UNDERSTUDY_BENCH_STORE", ROOT / ".understudy-benchmarks"))


def find_pair() -> ReferencePair:
    """The benchmarks' pair, built on first use."""
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import list_runs

    if not list_runs(Store(root := bench_store())):
        understudy("run", _CONFIG, "--store", root)
    return read_pair_of_run(root)


def read_pair_of_run(root: Path) -> ReferencePair:
    """The pair of the latest run in the store at `root`."""
    from pipeline.config.stored import run_config
    from pipeline.models.places import model_places
    from pipeline.models.stored_pair import read_pair
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run

    record = require_run(store := Store(root), None)
    pair = read_pair(find_built(store, record, "pair").path, model_places(run_config(record).pair))
    return ReferencePair(
        root,
        record.id,
        pair.path("target"),
        find_built(store, record, "distill").path / "draft",
        pair.tokenizer,
        find_built(store, record, "generate").path,
        pair.vocabulary,
        pair.stop_tokens,
    )


def windows(pair: ReferencePair, count: int, tokens: int, seed: int) -> list[list[int]]:
    """`count` different prompts of `tokens` tokens, cut from the library's source at places that `seed` chooses."""
    import sysconfig

    import numpy as np

    from pipeline.models.loading import load_tokenizer
    from pipeline.reference.text import read_text

    text = read_text(Path(sysconfig.get_paths()["stdlib"]), 5.0)
    documents = [document.text for document in (*text.modules, *text.tests)]
    ids = load_tokenizer(pair.tokenizer)(documents, add_special_tokens=False)["input_ids"]
    generator, chosen = np.random.default_rng(seed), set[tuple[int, ...]]()
    while len(chosen) < count:
        own = ids[int(generator.integers(len(ids)))]
        if len(own) > tokens:
            begin = int(generator.integers(len(own) - tokens))
            chosen.add(tuple(own[begin : begin + tokens]))
    return [list(prompt) for prompt in sorted(chosen)]


@contextmanager
def counted_calls(model: Any) -> Iterator[list[int]]:
    """Counts forward passes of `model` while it is used: the list grows by one a pass."""
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()

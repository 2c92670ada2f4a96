"""Drafts of the benchmarks' pair that differ by chance only: trained with other seeds, or on either half of the completions.

Target, prompts and completions stay the same, so that drafts can be paired by prompt. Each draft is trained once and kept in the
store of the pair.
"""

from typing import Any

from pipeline.acceptance.profile import PromptCounts
from tests.benchmarks.drafts import examined, trained
from tests.benchmarks.refpair import ReferencePair

TRAININGS: dict[str, tuple[int, int | None]] = {  # seed, half of the completions
    **{f"seed {seed}": (seed, None) for seed in (1, 2, 3, 4)},
    "one half": (1, 0),
    "other half": (2, 1),
}


def load_drafts(pair: ReferencePair) -> dict[str, Any]:
    """Models on the CPU by name: the pair's candidate (seed 0), its base draft, and the others."""
    import torch

    from pipeline.models.loading import load_model

    _, models = _run(pair)
    found = {"seed 0": pair.draft, "base draft": models.path("draft")}
    for name, (seed, half) in TRAININGS.items():
        directory = pair.root / "retrained" / name.replace(" ", "-")
        if not (directory / "config.json").exists():
            _train(pair, seed, half).save_pretrained(directory)
        found[name] = directory
    return {name: load_model(path, "float32", torch.device("cpu")) for name, path in found.items()}


def examination_counts(pair: ReferencePair, draft: Any) -> list[PromptCounts]:
    """Counts of a draft over the examination completions, as `evaluate` makes them."""
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling

    config, _ = _run(pair)
    sampling = Sampling.from_config(config.sampling)
    stored = read_completions(pair.completions, {"examination"}, sampling)
    return examined(draft, stored, pair.vocabulary, config.evaluate, sampling)


def _run(pair: ReferencePair) -> tuple[Any, Any]:
    """The config and the models of the pair's run."""
    from pipeline.config.stored import run_config
    from pipeline.models.places import model_places
    from pipeline.models.stored_pair import read_pair
    from pipeline.store.artifacts import Store
    from pipeline.store.runs import find_built, require_run

    record = require_run(store := Store(pair.root), pair.run)
    config = run_config(record)
    return config, read_pair(find_built(store, record, "pair").path, model_places(config.pair))


def _train(pair: ReferencePair, seed: int, half: int | None) -> Any:
    """A draft trained as `distill` does."""
    from pipeline.distillation.mixing import mix
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling

    stored, models = _run(pair)
    config = stored.model_copy(update={"seed": seed})
    dev = list(read_completions(pair.completions, {"dev"}, Sampling.from_config(config.sampling)))
    train = [
        item
        for item in read_completions(pair.completions, {"train"})
        if half is None or int(item.id, 16) % 2 == half  # ids are digests
    ]
    return trained(config, models, mix(train, config.distill.domain_shares, seed), dev)

"""What a retraining learns from a drift of the traffic: from rows since the change, and from all rows.

A draft is stale because its traffic changed: domains that it was trained for became rarer, and two new ones came.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from tests.benchmarks.answers import points
from tests.benchmarks.figures import write
from tests.benchmarks.runs import run_once

_BEFORE = {"code": 0.5, "documents": 0.3, "chat": 0.2}
_SINCE = {"code": 0.35, "documents": 0.15, "chat": 0.1, "maths": 0.25, "json": 0.15}
_ROWS, _CHARACTERS, _NEW, _GAMMA = 1600, 120, 64, 5
_TARGET, _DRAFT = (128, 2), (64, 1)  # width, layers
_STEPS = {"target": 500, "draft": 300}
_SEEDS = (1, 2, 3)
_CHANGE = "2026-11-24T10:00:00Z"
_STEPS_TRAINED = 200
_STALE, _ALL, _SINCE_CHANGE = "stale", "all rows", "alike"  # arms of a seed
_LABELS = {
    _STALE: "none: the stale draft",
    _ALL: "all rows, those before the change too",
    _SINCE_CHANGE: "rows since the change",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        log = _make(place)
        seeds = {str(seed): _seed(place, seed) for seed in _SEEDS}
    write("drift_learning", "python -m tests.benchmarks drift_learning", {"log": log, "seeds": seeds})


def _make(place: Path) -> dict[str, Any]:
    """Write `target/`, `draft/` and `log.jsonl`; returns the rows by domain."""
    import torch

    from tests.benchmarks.distillation.domains import read_domain
    from tests.benchmarks.segments_pair import chat_tokenizer, save_models, small_model, train

    texts = {name: [document.text for document in read_domain(name)] for name in _SINCE}
    trained = {name: some[: len(some) * 2 // 3] for name, some in texts.items()}
    tokenizer = chat_tokenizer([text[:2000] for some in trained.values() for text in some])

    def tokens(names: Sequence[str]) -> torch.Tensor:
        ids = tokenizer([text for name in names for text in trained[name]], add_special_tokens=False)["input_ids"]
        return torch.tensor([token for document in ids for token in document])

    target, draft = small_model(tokenizer, *_TARGET), small_model(tokenizer, *_DRAFT)
    train(target, tokens(list(_SINCE)), _STEPS["target"], 3e-3, 1)
    train(draft, tokens(list(_BEFORE)), _STEPS["draft"], 4e-3, 2)
    save_models(place, tokenizer, target=target, draft=draft)
    before, since = list(_rows(texts, _BEFORE, 0)), list(_rows(texts, _SINCE, 1))
    rows = [*before, *since]
    (place / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {name: dict(Counter(row["domain"] for row in some)) for name, some in (("before", before), ("since", since))}


def _rows(texts: Mapping[str, Sequence[str]], shares: Mapping[str, float], side: int) -> Iterator[dict[str, Any]]:
    """Requests of an hour before the change, or after it, from documents that no model was trained on. Those of a document are a
    group."""
    import numpy as np

    random = np.random.default_rng(side)
    created = 1795514400 + (1 if side else -7200)
    for name, share in shares.items():
        held = texts[name][len(texts[name]) * 2 // 3 :]
        for _ in range(round(share * _ROWS)):
            document = int(random.integers(len(held)))
            begin = int(random.integers(max(1, len(held[document]) - _CHARACTERS)))
            prompt = held[document][begin : begin + _CHARACTERS]
            yield {"prompt": prompt, "domain": name, "group": f"{name}-{document}", "created": created}


def _seed(place: Path, seed: int) -> dict[str, Any]:
    """Acceptance of every arm on the examination prompts since the change, and its gain over a training on the rows since it."""
    import torch

    from pipeline.acceptance.gains import acceptance_gain
    from pipeline.models.loading import load_model

    since = _completions(place, seed, True)
    counts = {_STALE: _counts(since, load_model(place / "draft", "float32", torch.device("cpu")))}
    tokens = {}
    for name, artifacts in ((_ALL, _completions(place, seed, False)), (_SINCE_CHANGE, since)):
        draft, tokens[name] = _trained(place, seed, artifacts, name == _SINCE_CHANGE)
        counts[name] = _counts(since, draft)
    return {
        "acceptance_rate": {name: _rate(some) for name, some in counts.items()},
        "by_domain": {
            name: {domain: _rate([one for one in some if one.domain == domain]) for domain in _SINCE}
            for name, some in counts.items()
        },
        "gains": {
            name: asdict(acceptance_gain(some, counts[_SINCE_CHANGE], 0.95).figure)
            for name, some in counts.items()
            if name != _SINCE_CHANGE
        },
        "tokens": tokens,
    }


def _config(place: Path, seed: int, since: bool) -> dict[str, Any]:
    return {
        "name": "drift",
        "seed": seed,
        "pair": {name: {"source": str(place / name), "dtype": "float32"} for name in ("target", "draft")},
        "corpus": {
            "sources": [{"path": str(place / "log.jsonl")}],
            "since": _CHANGE if since else None,
            "chat_template": False,
            "splits": {"train": 0.55, "dev": 0.1, "examination": 0.35},
        },
        "generate": {"max_new_tokens": _NEW, "batch": 128},
        "distill": {"max_steps": _STEPS_TRAINED, "evaluate_every": 50, "save_every": _STEPS_TRAINED},
        "evaluate": {"gamma": _GAMMA},
        "promote": {"target_name": "drift"},
    }


def _completions(place: Path, seed: int, since: bool) -> dict[str, Path]:
    """The artifacts of a run up to `generate`, by job."""
    run = f"{seed}-{'since' if since else 'all'}"
    return run_once(place / "store", _config(place, seed, since), "generate", run)


def _trained(place: Path, seed: int, found: Mapping[str, Path], since: bool) -> tuple[Any, int]:
    """A draft trained as `distill` does, and the completion tokens that it was trained on."""
    from pipeline.config.loading import parse_config
    from pipeline.distillation.dataset import PackedCompletions
    from pipeline.distillation.mixing import mix
    from pipeline.generation.completion_store import read_completions
    from pipeline.models.places import model_places
    from pipeline.models.stored_pair import read_pair
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.drafts import trained

    config = parse_config(_config(place, seed, since), "drift")
    models = read_pair(found["pair"], model_places(config.pair))
    rows = mix(list(read_completions(found["generate"], {"train"})), config.distill.domain_shares, seed)
    dev = list(read_completions(found["generate"], {"dev"}, Sampling()))
    a_row = sum(item.length for item in rows) / len(PackedCompletions(rows).rows)
    return trained(config, models, rows, dev), round(a_row * config.distill.batch * config.distill.max_steps)


def _counts(found: Mapping[str, Path], draft: Any) -> list[Any]:
    """Counts of a draft over the examination completions of one run."""
    from pipeline.config.evaluate import EvaluateConfig
    from pipeline.generation.completion_store import read_completions
    from pipeline.speculation.settings import Sampling
    from tests.benchmarks.drafts import examined

    stored = list(read_completions(found["generate"], {"examination"}, Sampling()))
    return examined(draft, stored, stored[0].vocabulary, EvaluateConfig(gamma=_GAMMA))


def _rate(counts: Sequence[Any]) -> float:
    return float(sum(one.accepted for one in counts) / sum(one.tokens for one in counts))


def section(figure: dict[str, Any]) -> Iterator[str]:
    log, seeds = figure["log"], list(figure["seeds"].values())
    prompts, tokens = seeds[0]["gains"][_STALE]["prompts"], seeds[0]["tokens"]
    yield "## Learning from a drift\n"
    yield (
        f"A log of {sum(log['before'].values()):,} requests before a change of the traffic and {sum(log['since'].values()):,} "
        f"after it, in which two domains are new. Drafts are trained from the stale one on {tokens[_SINCE_CHANGE]:,} tokens. "
        f"Acceptance rate on {prompts} examination prompts since the change: difference from the training on the rows since the "
        "change, in points, paired by prompt, with 95% intervals, by seed of completions and training.\n"
    )
    yield f"| training | {' | '.join(f'seed {seed}' for seed in figure['seeds'])} | mean |"
    yield f"|---|{'---:|' * (len(seeds) + 1)}"
    for name in seeds[0]["gains"]:
        gains = [seed["gains"][name] for seed in seeds]
        shown = " | ".join(points(gain, digits=2) for gain in gains)
        yield f"| {_LABELS[name]} | {shown} | {100 * mean(gain['value'] for gain in gains):+.2f} |"
    yield "\nAcceptance rates by domain with its share of the traffic, means over the seeds:\n"
    yield f"| training | all | {' | '.join(f'{name} ({share:.0%})' for name, share in _SINCE.items())} |"
    yield f"|---|---:|{'---:|' * len(_SINCE)}"
    for name, label in _LABELS.items():
        rates = [mean(seed["by_domain"][name][domain] for seed in seeds) for domain in _SINCE]
        overall = mean(seed["acceptance_rate"][name] for seed in seeds)
        yield f"| {label} | {' | '.join(f'{rate:.3f}' for rate in (overall, *rates))} |"

"""Drafts distilled from a target behind vLLM servers against drafts distilled from the same target in this process, and what is
lost where a server lists only its likeliest tokens.

A pair with more prompts than the quickstart's is made once. For each seed the target's completions are generated in the process
and by the servers, and a draft is trained on each. The completions in the process are stored again with entries drawn from the 20
and the 128 likeliest tokens, as from a server's answer, and drafts are trained on those too: they differ by the listing only. All
drafts are examined on the same completions and paired by prompt.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.answers import points
from tests.benchmarks.drafts import acceptance_rate, examined, trained
from tests.benchmarks.figures import write
from tests.benchmarks.runs import run_once

SEEDS = (0, 1, 2)
LISTED = (20, 128)
PROMPTS, NEW = 2600, 64
FLAGS = ("--max-logprobs", "128", "--logprobs-mode", "processed_logprobs")
_VLLM = "VLLM_PYTHON"


def main() -> None:
    if _VLLM not in os.environ:
        sys.exit(f"served_distillation: {_VLLM} is not set: it names the Python of vLLM's environment (`make engines`)")
    with tempfile.TemporaryDirectory() as place:
        figure = measure(Path(os.environ.get("UNDERSTUDY_SERVED_STORE", place)), Path(os.environ[_VLLM]))
    write("served_distillation", "python -m tests.benchmarks served_distillation", figure)


def measure(place: Path, python: Path) -> dict[str, Any]:
    """Differences of acceptance rate, and the mass that the servers do not list. `python`: of vLLM's environment."""
    from tests.conformance.servers import Server

    place.mkdir(exist_ok=True)
    models = _pair(place)
    jobs = {
        f"process {seed}": run_once(place / f"process-{seed}", _config(models, seed), "distill", "only")
        for seed in SEEDS
    }
    with ExitStack() as stack:
        servers = [Server(python, models / "target", FLAGS, place / f"vllm{number}.log") for number in range(2)]
        urls = [stack.enter_context(server).url for server in servers]
        for seed in SEEDS:
            store = place / f"served-{seed}"
            jobs[f"served {seed}"] = run_once(store, _config(models, seed, urls), "distill", "only")
    drafts = {name: found["distill"] / "draft" for name, found in jobs.items()}
    unlisted = {}
    for listed in LISTED:
        for seed in SEEDS:
            name = f"listed {listed} {seed}"
            drafts[name], unlisted[str(listed)] = _trained(place, models, jobs[f"process {seed}"], seed, listed)
    counts = _examined(jobs["process 0"], drafts)
    return {
        "examination_prompts": len(counts["process 0"]),
        "train_completions": _completions(jobs["process 0"], "train"),
        "acceptance_rate": {name: acceptance_rate(found) for name, found in counts.items()},
        "served": _gain(counts, "served", "process"),
        "other seeds": _gain(counts, "process", "process", shift=1),
        "listed": {str(listed): _gain(counts, f"listed {listed}", "process") for listed in LISTED},
        "unlisted_mass": unlisted,
    }


def _pair(place: Path) -> Path:
    """The artifact with target, base draft, tokenizer and prompts."""
    config = {
        "name": "pair",
        "pair": {
            "target": {"source": "reference"},
            "draft": {"source": "reference"},
            "reference": {"prompts": PROMPTS, "text_megabytes": 4.0},
        },
        "corpus": {"sources": [{"path": "reference"}], "chat_template": False},
        "promote": {"target_name": "pair"},
    }
    return run_once(place / "pair", config, "corpus", "only")["pair"]


def _config(models: Path, seed: int, urls: Sequence[str] = ()) -> dict[str, Any]:
    target: dict[str, Any] = {"source": str(models / "target"), "dtype": "float32"}
    generate: dict[str, Any] = {"max_new_tokens": NEW, "batch": 128}
    if urls:
        target = {"source": "server", "tokenizer": str(models / "tokenizer"), "revision": "v1", "dtype": "float32"}
        generate |= {"engine": "server", "server": {"endpoints": list(urls), "logprobs": 128}}
    return {
        "name": "served",
        "seed": seed,
        "pair": {"target": target, "draft": {"source": str(models / "draft")}},
        "corpus": {
            "sources": [{"path": str(models / "prompts.jsonl")}],
            "chat_template": False,
            "splits": {"train": 0.56, "dev": 0.08, "examination": 0.36},
        },
        "generate": generate,
        "distill": {
            "optimizer": "muon",
            "max_steps": 200,
            "learning_rate": 3e-3,
            "weight_decay": 0.1,
            "evaluate_every": 50,
            "save_every": 200,
        },
        "promote": {"target_name": "served"},
    }


def _completions(found: dict[str, Path], split: str) -> int:
    from pipeline.generation.completion_store import stored_samplings

    return sum(stored_samplings(found["generate"], {split}).values())


def _trained(place: Path, pair: Path, found: dict[str, Path], seed: int, listed: int) -> tuple[Path, float]:
    """A draft trained on the completions of `found`, with stored entries drawn from the `listed` likeliest tokens, and the mean
    mass of the other tokens."""
    from pipeline.config.loading import parse_config
    from pipeline.distillation.mixing import mix
    from pipeline.generation.completion_store import read_completions
    from pipeline.models.places import model_places
    from pipeline.models.stored_pair import read_pair
    from pipeline.speculation.settings import Sampling

    directory = place / f"listed-{listed}-{seed}"
    config = parse_config(_config(pair, seed), "served")
    models = read_pair(found["pair"], model_places(config.pair))
    train = list(read_completions(found["generate"], {"train"}))
    changed, unlisted = _listed(models, train, listed)
    if not (directory / "config.json").exists():
        dev = list(read_completions(found["generate"], {"dev"}, Sampling.from_config(config.sampling)))
        rows = mix(changed, config.distill.domain_shares, seed)
        trained(config, models, rows, dev).save_pretrained(directory)
    return directory, unlisted


def _listed(models: Any, train: Sequence[Any], listed: int) -> tuple[list[Any], float]:
    """The completions with entries drawn as from a server's list; the mean mass that is not listed."""
    import torch

    from pipeline.generation.distributions import pack, sparsify
    from pipeline.models.loading import load_model

    target, found, masses = load_model(models.path("target"), "float32", torch.device("cpu")), [], []
    with torch.inference_mode():
        for number, item in enumerate(train):
            ids = torch.tensor([[*item.prompt.tolist(), *item.tokens.tolist()]])
            logits = target(ids).logits[0, len(item.prompt) - 1 : -1, : item.vocabulary]
            log_p_NK, ids_NK = logits.float().log_softmax(-1).topk(listed)
            mass_N = log_p_NK.double().exp().sum(-1)
            masses.append(float((1 - mass_N).mean()))
            uniform_N = np.random.default_rng([number, 1]).random(len(mass_N))
            kept = sparsify(log_p_NK, item.entries.shape[1], "sampled", uniform_N, mass_N)
            kept = kept._replace(ids_NK=np.take_along_axis(ids_NK.numpy().astype(np.int32), kept.ids_NK, 1))
            found.append(
                replace(item, entries=pack(kept, item.vocabulary), certain=kept.certain_N, rest_log_p=kept.rest_log_p_N)
            )
    return found, float(np.mean(masses))


def _examined(found: dict[str, Path], drafts: dict[str, Path]) -> dict[str, list[Any]]:
    """Counts of each draft over the examination completions of one run."""
    import torch

    from pipeline.generation.completion_store import read_completions
    from pipeline.models.loading import load_model
    from pipeline.speculation.settings import Sampling

    stored = list(read_completions(found["generate"], {"examination"}, Sampling()))
    return {
        name: examined(load_model(path, "float32", torch.device("cpu")), stored, stored[0].vocabulary)
        for name, path in drafts.items()
    }


def _gain(counts: dict[str, list[Any]], ours: str, theirs: str, shift: int = 0) -> dict[str, Any]:
    """The acceptance rate of drafts `ours` minus that of drafts `theirs`, paired by prompt: of each seed, and of all together,
    where a prompt's counts are summed over the seeds."""
    from pipeline.acceptance.intervals import ratio_gain

    def columns(seeds: Sequence[int]) -> tuple[Any, Any, Any, Any]:
        one = [counts[f"{ours} {seed}"] for seed in seeds]
        other = [counts[f"{theirs} {(seed + shift) % len(SEEDS)}"] for seed in seeds]
        return tuple(
            np.sum([[getattr(item, name) for item in found] for found in side], axis=0, dtype=float)
            for side in (one, other)
            for name in ("accepted", "examined")
        )

    domains = [item.domain for item in counts[f"{ours} 0"]]
    each = [ratio_gain(*columns([seed]), domains, 0.95) for seed in SEEDS]
    whole = None if shift else ratio_gain(*columns(SEEDS), domains, 0.95)  # of all seeds with each other it is 0
    first, *further = (
        None if one is None else {"value": one.value, "low": one.low, "high": one.high} for one in (whole, *each)
    )
    return {"seeds": further, "all": first}


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Drafts distilled from served targets\n"
    yield (
        f"The reference pair's target behind two vLLM servers (`{' '.join(FLAGS)}`), and the same target loaded in the process: "
        f"{figure['train_completions']:,} completions of at most {NEW} tokens each, one draft for each of {len(SEEDS)} seeds. "
        f"Acceptance rates on {figure['examination_prompts']:,} prompts, the same completions for all drafts; differences in "
        "points with 95% intervals, paired by prompt.\n"
    )
    yield "| difference | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | all |"
    yield "|---|" + "---|" * (len(SEEDS) + 1)
    rows = {
        "served minus in process": figure["served"],
        "in process, seed s minus seed s + 1": figure["other seeds"],
        **{f"entries of the {listed} likeliest minus of the whole": row for listed, row in figure["listed"].items()},
    }
    for name, row in rows.items():
        yield (
            f"| {name} | "
            + " | ".join(points(one, digits=2) if one else "" for one in [*row["seeds"], row["all"]])
            + " |"
        )
    masses = ", ".join(f"{mass:.2%} beyond {listed}" for listed, mass in figure["unlisted_mass"].items())
    yield f"\nMean probability that is not listed, of a vocabulary of 1,024: {masses}."

"""What a run will ask of the target and of the disk, before anything runs. Torch-free; reads no more than row counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.generate import SamplingConfig
from pipeline.config.root import Config
from pipeline.corpus.readers import SourceReader
from pipeline.distillation.learning_curve import CURVE
from pipeline.running.jobs import expand
from pipeline.store.artifacts import Store
from pipeline.store.files import read_json
from pipeline.store.runs import list_runs, require_run

_PER_TOKEN, _PER_KEPT = (
    4 + 4 + 1 + 2,
    3,
)  # bytes: id, log p, certain, rest; a kept token (pipeline/generation/completion_store.py)


@dataclass(frozen=True)
class Asked:
    """What one generate job asks for, at most: prompts may be dropped as duplicates, and completions may stop early."""

    job: str
    completions: int
    tokens: int
    stored_bytes: int


@dataclass(frozen=True)
class Forecast:
    """Upper bounds, with every row a prompt and every completion as long as it may be."""

    rows: int
    prompts: dict[str, int]  # by split
    bytes_per_token: int
    generate: list[Asked]
    training_steps: int  # optimiser steps of all trainings
    training_rows: int  # sequences that these steps see
    first_turns_only: bool  # chats go on for as long as the target's answers let them


def forecast(config: Config) -> Forecast:
    """UsageError for a source that is not there or cannot be read."""
    rows = sum(source_rows(config))
    splits = config.corpus.splits
    prompts = {name: round(rows * getattr(splits, name)) for name in ("train", "dev", "examination")}
    bytes_per_token = _PER_TOKEN + _PER_KEPT * config.generate.kept
    asked = [
        _asked(config, job.id, prompts, bytes_per_token, whole=not job.part)
        for job in expand(config, ())
        if job.stage == "generate"
    ]
    asked += _on_policy(config, prompts["train"], bytes_per_token)
    steps, batch = _training_steps(config), config.distill.batch * config.distill.accumulation
    return Forecast(rows, prompts, bytes_per_token, asked, steps, steps * batch, _chats(config))


def _chats(config: Config) -> bool:
    return any(source.every_turn for source in config.corpus.sources)


def source_rows(config: Config) -> Sequence[int]:
    """How many each source has, its limit respected."""
    return [
        config.pair.reference.prompts
        if source.is_reference
        else SourceReader(number, source, Path(source.path)).total()
        for number, source in enumerate(config.corpus.sources)
    ]


def _asked(config: Config, job: str, prompts: dict[str, int], bytes_per_token: int, whole: bool) -> Asked:
    wanted = config.generate
    examined = prompts["examination"] * len(_examined_at(config))
    learnt = prompts["train"] * max(1, len(wanted.train_temperatures)) + prompts["dev"] if whole else 0
    tokens = (examined + learnt) * wanted.max_new_tokens
    stored = tokens + examined * wanted.lookahead
    return Asked(job, examined + learnt, stored, stored * bytes_per_token)


def _on_policy(config: Config, train: int, bytes_per_token: int) -> list[Asked]:
    """What the draft writes and the target scores, for each training."""
    own = config.distill.on_policy
    completions = own.rounds * min(own.prompts, train) * (1 + len(config.distill.learning_curve))
    tokens = completions * config.generate.max_new_tokens
    return [Asked("on-policy rounds", completions, tokens, tokens * bytes_per_token)] if completions else []


def _examined_at(config: Config) -> set[SamplingConfig | float]:
    """Temperature 0 always, the deployment's settings, and further ones; at temperature 0 filters change nothing."""
    return {0.0, *(one if one.temperature else 0.0 for one in (config.sampling, *config.generate.also_at))}


def _training_steps(config: Config) -> int:
    settings = config.distill
    once = settings.max_steps + settings.on_policy.rounds * settings.on_policy.max_steps
    return once * (1 + len(settings.learning_curve))


def last_learning_curve(store: Store, name: str) -> dict[str, Any] | None:
    """`learning_curve.json` of the latest run called `name` that drew one."""
    for run in reversed(list_runs(store)):
        record = require_run(store, run)
        entry = record.jobs.get("distill")
        artifact = store.find("distill", entry["key"]) if entry and record.name == name else None
        if artifact is not None and (artifact.path / CURVE).exists():
            return dict(read_json(artifact.path / CURVE))
    return None

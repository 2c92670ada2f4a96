"""How many tokens a run will generate and store, computed before anything runs. Torch-free; reads only row counts."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.config.root import Config
from pipeline.config.tasks import GenerateTask
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import parse_answer
from pipeline.corpus.hub_data import source_files
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.recorded_turns import rows_by_answer
from pipeline.corpus.traffic import Traffic
from pipeline.distillation.learning_curve import LearningCurve, find_curve
from pipeline.distillation.rate_search import trial_steps
from pipeline.planning.same_inputs import PlannedInputs
from pipeline.planning.work import bytes_per_token, completions_of, training_steps
from pipeline.running.jobs import jobs_of
from pipeline.store.artifacts import Store
from pipeline.store.runs import read_runs


@dataclass(frozen=True, kw_only=True)
class GenerationForecast:
    """Upper bounds for one generate job: prompts may be dropped as duplicates, and completions may stop early."""

    job: str
    completions: int
    tokens: int
    stored_bytes: int


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Upper bounds: every row is a prompt, and every completion has the maximal length."""

    sources: list[str]  # what each was read as, for people; none for the reference pair
    rows: int
    prompts: dict[str, int]  # by split
    samplings: int  # at which each examination prompt is completed
    new_tokens: int  # of a completion
    lookahead: int  # further tokens of a completion of an examination prompt
    bytes_per_token: int
    generate: list[GenerationForecast]
    prompt_positions: int  # of train prompts, at most, which the target scores too
    training_steps: int  # optimiser steps of all trainings
    trial_steps: int  # of these, those that find the learning rate, of one training
    rate_is_untried: bool  # it is to be found, by no trial
    training_rows: int  # sequences that these steps see
    endpoints: int  # servers that generate; 0 if the target is loaded here
    recorded_answers: (
        int | None
    )  # rows whose answer is used: the target only scores it. None: there are some, and the rows are not read
    first_turns_only: bool  # true for chats: the number of later turns depends on the target's answers


def forecast(config: Config) -> Forecast:
    """UsageError for a source that is not there or cannot be read; with `plan.rows` none is read."""
    readers = source_readers(config) if config.plan.rows is None else {}
    rows = sum(source_rows(config)) if config.plan.rows is None else config.plan.rows
    splits = config.corpus.splits
    prompts = {name: round(rows * getattr(splits, name)) for name in ("train", "dev", "examination")}
    of_token = bytes_per_token(config)
    generate = [
        _generation(config, job.id, job.task.splits, prompts, of_token)
        for job in jobs_of(config)
        if isinstance(job.task, GenerateTask)
    ]
    generate += _on_policy(config, prompts["train"], of_token)
    mean = config.plan.prompt_tokens or config.generate.max_new_tokens  # as long as completions are stored, at most
    most = min(config.generate.max_new_tokens, mean) if config.distill.prompt_weight else 0
    steps, batch = training_steps(config), config.distill.batch * config.distill.accumulation
    return Forecast(
        sources=[reader.line for reader in readers.values()],
        rows=rows,
        prompts=prompts,
        samplings=round(completions_of(config, {"examination": 1.0}, ("examination",))["examination"]),
        new_tokens=config.generate.max_new_tokens,
        lookahead=config.generate.lookahead,
        bytes_per_token=of_token,
        generate=generate,
        prompt_positions=round(prompts["train"] * most),
        training_steps=steps,
        trial_steps=trial_steps(config.distill),
        rate_is_untried=config.distill.learning_rate == "auto" and not trial_steps(config.distill),
        training_rows=steps * batch,
        endpoints=len(config.generate.server.endpoints),
        recorded_answers=_recorded(config, readers.values()),
        first_turns_only=_chats(config),
    )


def _recorded(config: Config, readers: Iterable[SourceReader]) -> int | None:
    """Rows with an answer that can be used as far as is seen without a tokenizer, of the sources that use them. None where there
    may be some and no row is read."""
    if config.plan.rows is not None:
        return None if any(source.use_answers for source in config.corpus.sources) else 0
    today = datetime.now(UTC).date()
    return sum(
        _has_answer(value, reader.source)
        for reader in readers
        if reader.source.use_answers
        for row in Traffic(reader, reader.source, today, reader.since)
        for value in rows_by_answer(row.value, reader.source)
        if not row.redacted
    )


def _has_answer(value: Any, source: PromptSource) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        parse_answer(value, source)
    except UnusableAnswer:
        return False
    return True


def _chats(config: Config) -> bool:
    return any(source.every_turn for source in config.corpus.sources)


def source_readers(config: Config) -> dict[int, SourceReader]:
    """The readers of the sources that are files, by their number. UsageError for one that is not there or cannot be read."""
    sources = enumerate(config.corpus.sources)
    since = config.corpus.since_seconds
    return {
        number: SourceReader(number, source, source_files(number, source), since=since)
        for number, source in sources
        if not source.is_reference
    }


def source_rows(config: Config) -> Sequence[int]:
    """The number of rows of each source, within its limit."""
    readers = source_readers(config)
    return [
        _rows(readers[number]) if number in readers else config.pair.reference.prompts
        for number in range(len(config.corpus.sources))
    ]


def _rows(reader: SourceReader) -> int:
    """The rows of the window and the sample, and with `every_answer` their answers. The rows are read where their content
    matters."""
    source = reader.source
    if source.every_answer:
        rows = Traffic(reader, source, datetime.now(UTC).date(), reader.since)
        return sum(len(rows_by_answer(row.value, source)) for row in rows)
    if source.since is not None or reader.since is not None:
        return sum(1 for _ in Traffic(reader, source, datetime.now(UTC).date(), reader.since))
    return min(reader.total(), source.sample or sys.maxsize)


def _generation(
    config: Config, job: str, splits: Collection[str], prompts: dict[str, int], of_token: int
) -> GenerationForecast:
    settings = config.generate
    by_split = {split: round(count) for split, count in completions_of(config, prompts, splits).items()}
    completions = sum(by_split.values())
    stored = completions * settings.max_new_tokens + by_split.get("examination", 0) * settings.lookahead
    return GenerationForecast(job=job, completions=completions, tokens=stored, stored_bytes=stored * of_token)


def _on_policy(config: Config, train: int, of_token: int) -> list[GenerationForecast]:
    """The completions that the draft generates and the target scores, in all trainings together."""
    rounds = config.distill.on_policy
    completions = rounds.rounds * min(rounds.prompts, train) * (1 + len(config.distill.learning_curve))
    tokens = completions * config.generate.max_new_tokens
    if not completions:
        return []
    return [
        GenerationForecast(
            job="on-policy rounds", completions=completions, tokens=tokens, stored_bytes=tokens * of_token
        )
    ]


def last_learning_curve(store: Store, config: Config) -> LearningCurve | None:
    """`learning_curve.json` of the latest run of this name, target and prompts that has one."""
    inputs = PlannedInputs.of(config, store)
    for record in reversed(read_runs(store)):
        entry, same = record.jobs.get("distill"), inputs.same_target(record) and inputs.same_prompts(record)
        artifact = store.find("distill", entry.key) if entry and same and record.name == config.name else None
        curve = find_curve(artifact.path) if artifact is not None else None
        if curve is not None:
            return curve
    return None

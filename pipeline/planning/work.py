"""How much work each job of a run is: tokens in and out, and what its time and its files grow with. Pure; reads no file.

Two runs of one config differ in their amounts only, so the time of a job is its work over a throughput that an earlier run had.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.config.generate import SamplingConfig
from pipeline.config.root import Config
from pipeline.config.tasks import EvaluateTask, GenerateTask, PromptsTask
from pipeline.distillation.rate_search import most_trials, trial_steps
from pipeline.drafts.kinds import KINDS
from pipeline.running.jobs import Job, jobs_of

# By what a job's throughput is known. Of the others it is known only if a run has measured it.
Rate = Literal["generate", "train", "examine", "speed", "other"]

# Bytes (pipeline/generation/completion_store.py): of a token its id, log p, certain and rest; of each kept token.
_PER_TOKEN, _PER_KEPT = 4 + 4 + 1 + 2, 3
FORWARD, TRAINING, RECOMPUTED = 2, 6, 8  # FLOPs for a parameter and a token; RECOMPUTED: with gradient checkpointing


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """What a run has: rows, prompts by split, and lengths in tokens."""

    rows: float
    prompts: Mapping[str, float]
    prompt_tokens: float  # mean
    completion_tokens: float  # mean, without the lookahead
    longest_prompt: float
    turns: float = 1.0  # completions for each one that is planned: more than 1 for chats with several turns
    processes: float = 1.0  # that train the draft
    recorded: float = 0.0  # share of the prompts whose recorded answer is scored only
    target_passes: bool = (
        False  # whether a trained token takes a pass of the target, whose hidden states the draft reads
    )


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one job."""

    rate: Rate
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    asked: float = 0.0  # tokens that servers are asked for at most, by which generate.server.tokens_per_second counts
    amount: float = 1.0  # seconds grow with it
    unit: str = ""  # of `amount`; empty for a job that is the same in every run
    size: float = 1.0  # bytes grow with it
    workers: float = 1.0  # endpoints of weight 1, or processes, that share it

    def of_one(self, workers: float) -> float:
        """What each of so many workers does."""
        return self.amount / workers


def work_of(config: Config, amounts: Amounts) -> dict[str, Work]:
    """The work by job, for a run without a champion: a champion's examination is one more, as long as the base draft's."""
    return {job.id: _work(job, config, amounts) for job in jobs_of(config)}


def _work(job: Job, config: Config, amounts: Amounts) -> Work:
    task = job.task
    if isinstance(task, GenerateTask):
        return _generation(config, amounts, task)
    if isinstance(task, PromptsTask):
        return _prompt_positions(config, amounts, task)
    if job.stage == "speed":
        return Work(rate="speed")
    if isinstance(task, EvaluateTask):
        return _examination(config, amounts, task)
    if job.stage == "distill":
        return _training(config, amounts)
    if job.stage == "quantize":
        return _tokens_examined(2 * _dev_tokens(amounts))  # before and after
    if job.stage == "corpus":
        tokens = _total(amounts.prompts) * amounts.prompt_tokens
        return Work(rate="other", tokens_out=tokens, amount=amounts.rows, unit="rows", size=_total(amounts.prompts))
    if job.stage == "gate":
        return Work(rate="other", amount=amounts.prompts["examination"], unit="prompts")
    return Work(rate="other")


def completions_of(config: Config, prompts: Mapping[str, float], splits: Collection[str]) -> dict[str, float]:
    """Completions by split, where no chat has a second turn."""
    kinds = {
        "train": max(1, len(config.generate.train_temperatures)),
        "dev": 1,
        "examination": len(_examined_at(config)),
    }
    return {split: prompts[split] * kinds[split] for split in splits}


def bytes_per_token(config: Config) -> int:
    """Bytes of a stored completion for each token."""
    return _PER_TOKEN + _PER_KEPT * config.generate.stored_tokens


def _examined_at(config: Config) -> set[SamplingConfig | float]:
    """Temperature 0, the deployment's settings, and further ones. At temperature 0 the filters have no effect."""
    return {
        0.0,
        *(
            sampling if sampling.temperature else 0.0
            for sampling in (config.sampling, *config.generate.examination_samplings)
        ),
    }


def endpoint_weights(config: Config) -> float:
    """The weights of the servers that generate; 1 if the target is loaded here."""
    return sum(endpoint.weight for endpoint in config.generate.server.endpoints) or 1.0


def processes_of(config: Config) -> int:
    """Those that examine, and that generate where the target is loaded, on this machine or on a Ray cluster."""
    return config.execution.local if config.execution.ray is None else config.execution.ray.workers


def is_scored_again(config: Config) -> bool:
    """Whether servers score each completion after they have made it, in a prefill of its own (docs/servers.md)."""
    sampling, server = config.sampling, config.generate.server
    if sampling.temperature == 0 or sampling == SamplingConfig():
        return False
    return server.api == "sglang" or not 0 < sampling.top_k <= server.logprobs


def generated_by_split(
    config: Config, amounts: Amounts, splits: Collection[str] = ("train", "dev", "examination")
) -> dict[str, float]:
    """Tokens of the target's completions; of examination prompts with those past the end."""
    lengths = dict.fromkeys(splits, amounts.completion_tokens)
    lengths |= {"examination": amounts.completion_tokens + config.generate.lookahead}
    by_split = completions_of(config, amounts.prompts, splits)
    return {split: amounts.turns * count * lengths[split] for split, count in by_split.items()}


def _generation(config: Config, amounts: Amounts, task: GenerateTask) -> Work:
    settings, served = config.generate, config.generate.is_served and task.target == "target"
    by_split = completions_of(config, amounts.prompts, task.splits)
    completions, examined = amounts.turns * _total(by_split), amounts.turns * by_split.get("examination", 0.0)
    stored = _total(generated_by_split(config, amounts, task.splits))
    whole = amounts.prompt_tokens + amounts.completion_tokens
    by_answer = recorded_by_split(config, amounts, task)
    scored, answered = _total(by_answer), by_answer.get("examination", 0.0)
    out = stored - scored * amounts.completion_tokens
    prefilled = (completions - scored) * amounts.prompt_tokens + scored * whole
    if served:  # each request is a prefill
        prefilled += examined * whole if settings.lookahead else 0.0
        prefilled += (completions - scored) * whole if is_scored_again(config) else 0.0
    else:
        prefilled += answered * whole if settings.lookahead else 0.0
    longest = (completions - scored) * (settings.max_new_tokens - amounts.completion_tokens)
    return Work(
        rate="generate" if served or not settings.is_served else "other",
        tokens_in=prefilled,
        tokens_out=out,
        asked=prefilled + out + longest if served else 0.0,
        amount=stored,  # a token that is scored takes at most the time of a generated one
        unit="tokens",
        size=stored,
        workers=endpoint_weights(config) if served else float(processes_of(config)),
    )


def _prompt_positions(config: Config, amounts: Amounts, task: PromptsTask) -> Work:
    """One prefill of each train prompt, which takes far less than as many generated tokens: how long is known from a run."""
    served, prompts = config.generate.is_served, amounts.prompts["train"]
    positions, tokens = min(task.positions, amounts.prompt_tokens), prompts * amounts.prompt_tokens
    return Work(
        rate="other",
        tokens_in=tokens,
        asked=tokens if served else 0.0,
        amount=tokens,
        unit="tokens",
        size=prompts * positions,
        workers=endpoint_weights(config) if served else float(processes_of(config)),
    )


def recorded_by_split(config: Config, amounts: Amounts, task: GenerateTask) -> dict[str, float]:
    """Completions that a log has, by split: one of each such prompt, at the deployment's sampling."""
    at = config.generate.train_temperatures or (config.sampling.temperature,)
    splits = [split for split in task.splits if split != "train" or config.sampling.temperature in at]
    return {split: amounts.recorded * amounts.prompts[split] for split in splits if task.target == "target"}


def _dev_tokens(amounts: Amounts) -> float:
    """Tokens of one examination on dev prompts."""
    return amounts.turns * amounts.prompts["dev"] * (amounts.prompt_tokens + amounts.completion_tokens)


def training_steps(config: Config) -> int:
    """Optimiser steps of all trainings, with the trials of learning rates."""
    settings = config.distill
    once = trial_steps(settings) + settings.max_steps + settings.on_policy.rounds * settings.on_policy.max_steps
    return once * (1 + len(settings.learning_curve))


def dev_examinations(config: Config) -> int:
    """The examinations on dev prompts in all trainings: each phase examines its draft before the first step, every
    `evaluate_every` steps, and at the end; the trials of learning rates each at its end, and once before."""
    settings, rounds = config.distill, config.distill.on_policy
    every = min(settings.evaluate_every, rounds.max_steps)
    trials = most_trials(settings)
    once = 1 + math.ceil(settings.max_steps / settings.evaluate_every) + (trials + 1 if trials else 0)
    return (once + rounds.rounds * (1 + math.ceil(rounds.max_steps / every))) * (1 + len(settings.learning_curve))


def training_flops(config: Config) -> int:
    """Operations for a parameter and a token of the training: 6 (Kaplan et al. 2020, arXiv 2001.08361), and 2 more where the
    forward pass is computed again in the backward pass."""
    return RECOMPUTED if config.distill.gradient_checkpointing else TRAINING


def examined_share(config: Config, amounts: Amounts) -> float:
    """What an examined token costs of a trained one: by its FLOPs, or as much where most of both is a pass of the target."""
    return 1.0 if amounts.target_passes else FORWARD / training_flops(config)


def trained_tokens(config: Config, amounts: Amounts) -> float:
    """Tokens of all training steps. Completions are packed into rows as long as the longest (`distillation/packing.py`)."""
    rows = training_steps(config) * config.distill.batch * config.distill.accumulation
    return rows * (amounts.longest_prompt + config.generate.max_new_tokens)


def _training(config: Config, amounts: Amounts) -> Work:
    trained, examined = trained_tokens(config, amounts), dev_examinations(config) * _dev_tokens(amounts)
    return Work(
        rate="train",
        tokens_in=trained + examined,
        amount=trained + examined * examined_share(config, amounts),
        unit="tokens",
        workers=amounts.processes,
    )


def _examination(config: Config, amounts: Amounts, task: EvaluateTask) -> Work:
    workers = float(processes_of(config))
    if task.split == "dev":
        return _tokens_examined(_dev_tokens(amounts), workers=workers)
    completions = amounts.turns * _total(completions_of(config, amounts.prompts, ("examination",)))
    length = amounts.prompt_tokens + amounts.completion_tokens + config.generate.lookahead
    rate: Rate = "examine" if KINDS[task.kind].has_weights else "other"
    return _tokens_examined(completions * length, size=completions, rate=rate, workers=workers)


def _tokens_examined(tokens: float, size: float = 1.0, rate: Rate = "examine", workers: float = 1.0) -> Work:
    return Work(rate=rate, tokens_in=tokens, amount=tokens, unit="tokens", size=size, workers=workers)


def _total(counts: Mapping[str, float]) -> float:
    return float(sum(counts.values()))

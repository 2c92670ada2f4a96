"""What a server's log-probabilities mean, found out by asking: a server does not report its flags. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pipeline.config.pair import NumberFormat
from pipeline.errors import UsageError
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import golden_prompts, is_rounding
from pipeline.servers.retries import retried
from pipeline.servers.target import Asking
from pipeline.speculation.settings import Sampling

_CERTAIN = -1e-4  # log p of a token that was the only one to choose from
_TOKENS = 16
_DEFAULTS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "samplers",
)


@dataclass(frozen=True)
class Abilities:
    """Of the log-probabilities that come with a completion."""

    processed: bool  # of the distribution as sampled from; else at temperature 1 without cut-offs
    trusted: bool  # they agree with a scoring of the same tokens; a server that speculates may report wrong ones
    scores: bool  # the server gives the log-probabilities of a prompt

    @property
    def text(self) -> str:
        """In words, for messages."""
        mode = "processed" if self.processed else "raw"
        return mode if self.trusted else f"{mode} and differ from a scoring (the server speculates)"


@dataclass(frozen=True)
class Passes:
    """What a completion at some sampling settings needs."""

    in_generation: bool  # the distributions at temperature 1 come with the completion
    rescored: bool  # a second request scores the completion
    log_p: str  # where log p at the sampling settings comes from: `answer`, `zero` (greedy) or `likeliest`


async def find_abilities(endpoint: Endpoint, asking: Asking, kept: int, dtype: NumberFormat) -> Abilities:
    """Ask `endpoint` for two completions and a scoring, with `kept` likeliest tokens.

    UsageError names the flag of a server that gives fewer; Unavailable if it does not answer.
    """
    prompt = golden_prompts()[0]

    def request(sampling: Sampling, kept: int) -> GenerateRequest:
        return GenerateRequest(
            prompt=prompt, sampling=sampling, max_tokens=_TOKENS, stop_tokens=(), ignore_eos=True, kept=kept
        )

    only_one, _ = await asking.generate(endpoint, request(Sampling(temperature=0.5, top_k=1), 0))
    found, _ = await asking.generate(endpoint, request(Sampling(), kept))
    trusted = True
    if asking.api.scores:
        ids = [*prompt, *found.tokens_N.tolist()]
        scored, _ = await asking.score(endpoint, ScoreRequest(ids=ids, start=len(prompt), kept=kept))
        trusted = is_rounding(float(np.abs(found.log_p_N - scored.log_p_N).mean()), dtype)
    processed = bool((only_one.log_p_N > _CERTAIN).all())
    return Abilities(processed=processed, trusted=trusted, scores=asking.api.scores)


def passes(sampling: Sampling, abilities: Abilities, kept: int, flag: str) -> Passes:
    """How to get log p at `sampling` and the distributions at temperature 1. UsageError where the server cannot give both.

    `flag`: what makes the server give log p of the distribution as sampled from; empty where nothing does.
    """
    plain = sampling.greedy or sampling.unchanged
    in_generation = abilities.trusted and (plain or not abilities.processed)
    if not in_generation and not abilities.scores:
        raise UsageError(
            f"generate.server: {_text(sampling)}: this server gives no log-probabilities of a prompt, which this sampling needs"
        )
    if plain:
        return Passes(in_generation, not in_generation, "zero" if sampling.greedy else "answer")
    if 0 < sampling.top_k <= kept:  # all tokens that can be sampled are among the likeliest
        return Passes(in_generation, not in_generation, "likeliest")
    if not abilities.trusted:
        raise UsageError(
            "generate.server: log-probabilities of completions differ from a scoring of the same tokens, as they do on servers "
            f"that speculate (vLLM issue 34497); {_text(sampling)} needs them: give an endpoint without speculation"
        )
    if not abilities.processed:
        remedy = f"start it with {flag}" if flag else f"use temperature 0 or 1 without cut-offs, or top_k up to {kept}"
        raise UsageError(
            f"generate.server: {_text(sampling)}: the server gives log-probabilities at temperature 1 only; {remedy}"
        )
    return Passes(in_generation=False, rescored=True, log_p="answer")


def passes_of_recorded(sampling: Sampling) -> Passes:
    """How to get them for tokens that are there already, of a server that scores. The config allows no sampling settings at
    which the listed tokens do not suffice."""
    log_p = "zero" if sampling.greedy else "answer" if sampling.unchanged else "likeliest"
    return Passes(in_generation=False, rescored=True, log_p=log_p)


async def require_defaults(endpoint: Endpoint, asking: Asking, sampling: Sampling) -> None:
    """UsageError if the server does not sample with `sampling` where a request states nothing: then the config does not describe
    the deployment.

    Completions with equal seeds are compared. Rounding can make one of them differ, so it takes two.
    """
    different = 0
    for seed, prompt in enumerate(golden_prompts()):
        request = GenerateRequest(
            prompt=prompt, sampling=sampling, max_tokens=_TOKENS, seed=seed, stop_tokens=(), ignore_eos=True
        )
        stated, _ = await retried(endpoint, partial(asking.generate, endpoint, request))
        by_default, _ = await retried(endpoint, partial(asking.generate, endpoint, request, without=_DEFAULTS))
        different += stated.tokens_N.tolist() != by_default.tokens_N.tolist()
    if different > 1:
        raise UsageError(
            f"{endpoint.url}: a request without sampling settings is not sampled with {_text(sampling)}, which `sampling` says; "
            "set `sampling` to what the deployment uses; if every request states its own settings, set pair.generation_config "
            "to ignore"
        )


def _text(sampling: Sampling) -> str:
    settings: Mapping[str, Any] = vars(sampling)
    neutral = vars(Sampling())
    changed = [
        f"{name} {value:g}" for name, value in settings.items() if value != neutral[name] or name == "temperature"
    ]
    return ", ".join(changed)

"""What a server's log-probabilities mean, found out by asking: a server does not report its flags. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from pipeline.config.pair import NumberFormat
from pipeline.errors import UsageError
from pipeline.servers.answers import Generated
from pipeline.servers.api import Api, GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import golden_prompts, is_rounding
from pipeline.servers.retries import retried
from pipeline.servers.target import Asking
from pipeline.speculation.settings import Sampling

_CERTAIN = -1e-4  # log p of a token that was the only one to choose from
_TOKENS = 16
_HALF = 0.5  # a temperature
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


# Of which distribution log p is: the model's own (temperature 1), that at the temperature before cut-offs, or that sampled from.
Mode = Literal["raw", "scaled", "processed"]


@dataclass(frozen=True)
class Abilities:
    """What the log-probabilities that come with a completion mean."""

    mode: Mode
    trusted: bool  # they agree with a scoring of the same tokens; a server that speculates may report wrong ones
    scores: bool  # the server gives the log-probabilities of a prompt

    @property
    def text(self) -> str:
        """The abilities in words, for messages."""
        return self.mode if self.trusted else f"{self.mode} and differ from a scoring (the server speculates)"


@dataclass(frozen=True)
class Passes:
    """What a completion at some sampling settings needs."""

    in_generation: bool  # the distributions at temperature 1 come with the completion
    rescored: bool  # a second request scores the completion
    # Where log p at the sampling settings comes from: `answer`, `zero` (greedy), `likeliest` (the listed tokens at temperature
    # 1) or `cut_off` (the answer and its listed tokens, which are at the sampling's temperature before cut-offs).
    log_p: Literal["answer", "zero", "likeliest", "cut_off"]

    @property
    def listed(self) -> bool:
        """Whether the completion is asked for with the likeliest tokens."""
        return self.in_generation or self.log_p == "cut_off"


async def find_abilities(endpoint: Endpoint, asking: Asking, kept: int, dtype: NumberFormat) -> Abilities:
    """Ask `endpoint` for two or three completions and a scoring, with `kept` likeliest tokens.

    UsageError names the flag of a server that gives fewer; Unavailable if it does not answer.
    """
    prompt = golden_prompts()[0]

    async def generated(sampling: Sampling, kept: int, tokens: int = _TOKENS) -> Generated:
        request = GenerateRequest(
            prompt=prompt, sampling=sampling, max_tokens=tokens, stop_tokens=(), ignore_eos=True, kept=kept
        )
        return (await asking.generate(endpoint, request))[0]

    only_one = await generated(Sampling(temperature=_HALF, top_k=1), 0)
    at_one = await generated(Sampling(), kept)
    mode: Mode = "processed"
    if not (only_one.log_p_N > _CERTAIN).all():
        sharper = await generated(Sampling(temperature=_HALF), kept, tokens=1)
        mode = "raw" if is_rounding(_first_difference(at_one, sharper), dtype) else "scaled"
    trusted = True
    if asking.api.scores:
        ids = [*prompt, *at_one.tokens_N.tolist()]
        scored, _ = await asking.score(endpoint, ScoreRequest(ids=ids, start=len(prompt), kept=kept))
        trusted = is_rounding(float(np.abs(at_one.log_p_N - scored.log_p_N).mean()), dtype)
    return Abilities(mode=mode, trusted=trusted, scores=asking.api.scores)


def _first_difference(one: Generated, other: Generated) -> float:
    """Mean difference of log p of the first token's likeliest tokens, as far as both list them."""
    assert one.likeliest is not None  # asked for
    assert other.likeliest is not None
    _, of_one, of_other = np.intersect1d(one.likeliest.ids_NK[0], other.likeliest.ids_NK[0], return_indices=True)
    log_p_K, other_K = one.likeliest.log_p_NK[0, of_one], other.likeliest.log_p_NK[0, of_other]
    both_K = np.isfinite(log_p_K) & np.isfinite(other_K)
    return float(np.abs(log_p_K - other_K)[both_K].mean()) if both_K.any() else np.inf


def passes(sampling: Sampling, abilities: Abilities, kept: int, vocabulary: int, api: Api) -> Passes:
    """How to get log p at `sampling` and the distributions at temperature 1, with `kept` likeliest tokens of `vocabulary` listed.
    UsageError where the server cannot give both."""
    _require_same_cut_offs(sampling, api)
    plain = sampling.greedy or sampling.unchanged
    in_generation = abilities.trusted and (plain or abilities.mode == "raw")
    if not in_generation and not abilities.scores:
        raise UsageError(
            f"generate.server: {_text(sampling)}: this server gives no log-probabilities of a prompt, which this sampling needs; "
            "serve the target with vLLM"
        )
    if plain:
        return Passes(in_generation, not in_generation, "zero" if sampling.greedy else "answer")
    if abilities.trusted and abilities.mode == "scaled":
        has_cut_offs = sampling != Sampling(temperature=sampling.temperature)
        return Passes(in_generation=False, rescored=True, log_p="cut_off" if has_cut_offs else "answer")
    if 0 < sampling.top_k <= kept or kept >= vocabulary:  # all tokens that can be sampled are among the likeliest
        return Passes(in_generation, not in_generation, "likeliest")
    if not abilities.trusted:
        raise UsageError(
            "generate.server: log-probabilities of completions differ from a scoring of the same tokens, as they do on servers "
            f"that speculate (vLLM issue 34497); {_text(sampling)} needs them: give an endpoint without speculation"
        )
    if abilities.mode == "raw":
        flag = api.processed_flag
        remedy = f"start it {flag}" if flag else f"use temperature 0 or 1 without cut-offs, or top_k up to {kept}"
        raise UsageError(
            f"generate.server: {_text(sampling)}: the server gives log-probabilities at temperature 1 only; {remedy}"
        )
    return Passes(in_generation=False, rescored=True, log_p="answer")


def _require_same_cut_offs(sampling: Sampling, api: Api) -> None:
    """UsageError where the engine cuts off other tokens than we do at these settings."""
    if not api.applies_in_order and not sampling.greedy and sampling.top_k > 1 and sampling.top_p < 1:
        raise UsageError(
            f"generate.server: {_text(sampling)}: {api.name} applies top_p to the distribution before top_k, and the examination "
            "after it; set one of the two, here and in the deployment"
        )


def passes_of_recorded(sampling: Sampling, api: Api) -> Passes:
    """How to get them for tokens that are there already, of a server that scores. The config allows no sampling settings at
    which the listed tokens do not suffice. UsageError as `passes`."""
    _require_same_cut_offs(sampling, api)
    if sampling.greedy or sampling.unchanged:
        return Passes(in_generation=False, rescored=True, log_p="zero" if sampling.greedy else "answer")
    return Passes(in_generation=False, rescored=True, log_p="likeliest")


async def require_defaults(endpoint: Endpoint, asking: Asking, sampling: Sampling) -> None:
    """UsageError if the server does not sample with `sampling` where a request states nothing: then the config does not describe
    the deployment.

    Completions with equal seeds are compared. Rounding can make one of them differ, so it takes two. An engine whose requests
    state everything is not asked.
    """
    if not asking.api.states_defaults:
        return
    different = 0
    for seed, prompt in enumerate(golden_prompts()):
        request = GenerateRequest(
            prompt=prompt, sampling=sampling, max_tokens=_TOKENS, seed=seed, stop_tokens=(), ignore_eos=True
        )
        stated, _ = await retried(partial(asking.generate, endpoint, request))
        by_default, _ = await retried(partial(asking.generate, endpoint, request, without=_DEFAULTS))
        different += stated.tokens_N.tolist() != by_default.tokens_N.tolist()
    if different > 1:
        raise UsageError(
            f"{endpoint.url}: a request without sampling settings is not sampled with {_text(sampling)} (`sampling`); "
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

"""One completion of a served target: one request, or several where one answer does not hold everything that is stored.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError, UsageError
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.cut_offs import cut_off, sampled_log_p
from pipeline.generation.distributions import pack, sparsify
from pipeline.generation.generate import GenerationSettings, seed_of
from pipeline.generation.logged import LoggedCompletion, NotOfTarget
from pipeline.generation.surprise import Surprise, surprise
from pipeline.servers.abilities import Abilities, passes, passes_of_recorded
from pipeline.servers.answers import Generated, LikeliestTokens, Scored
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import Identity
from pipeline.servers.target import ServedTarget
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling

_NEAR_TIE = 0.25  # nats; two batches in bfloat16 differ by less


@dataclass(frozen=True)
class Served:
    """The served target of a pair."""

    target: ServedTarget
    abilities: Abilities
    identity: Identity
    listed: int  # likeliest tokens asked for (K)
    vocabulary: int  # tokens that the pair shares
    stop_tokens: Sequence[int]


@dataclass(frozen=True)
class ReceivedCompletion:
    """A completion with what is stored of it (see `completion_store`), and the endpoints that made it."""

    endpoints: list[str]
    length: int  # without the lookahead
    stopped: bool
    surprise: Surprise | None  # see `surprise.py`; None where the distribution as sampled from is not listed
    answered_N: NDArray[np.float32]  # log p as the endpoints that made the tokens gave it
    arrays: dict[str, NDArray[Any]]  # tokens, log_p, entries, certain, rest_log_p


async def complete(
    served: Served, item: CompletionRequest, settings: GenerationSettings, logged: LoggedCompletion | None = None
) -> ReceivedCompletion:
    """Ask for one completion, or for the log-probabilities of a recorded one (`logged`).

    Raises as `ServedTarget.generate`; UsageError for sampling settings for which the server's log-probabilities do not suffice,
    or a stop token that the pair does not know; NotOfTarget for a recorded completion that the target cannot have given."""
    api = served.target.asking.api
    if logged is None:
        way = passes(item.sampling, served.abilities, served.listed, served.vocabulary, api)
    else:
        way = passes_of_recorded(item.sampling, api)
    # Without a seed: vLLM samples slower with seeds of requests, and its CPU build 0.32.0 ends at one whose prefill is split.
    first = GenerateRequest(
        prompt=item.prompt.tokens,
        sampling=item.sampling,
        max_tokens=settings.max_new_tokens,
        stop_tokens=served.stop_tokens,
        kept=served.listed if way.listed else 0,
    )
    endpoints = set()
    if logged is None:
        found, endpoint = await served.target.generate(first)
        _check_end(found, served.stop_tokens, endpoint)
        endpoints.add(endpoint.url)
    else:
        unknown_N = np.zeros(len(logged.tokens_N), dtype=np.float32)  # until it is scored
        found = Generated(tokens_N=logged.tokens_N, log_p_N=unknown_N, likeliest=None, stopped=logged.stopped)
    answers = [found]
    if item.prompt.split == "examination" and settings.lookahead:
        prompt = [*item.prompt.tokens, *found.tokens_N.tolist()]
        going_on = replace(first, prompt=prompt, max_tokens=settings.lookahead, ignore_eos=True)
        later, endpoint = await served.target.generate(going_on)
        answers.append(later)
        endpoints.add(endpoint.url)
    tokens_N = np.concatenate([one.tokens_N for one in answers])
    answered_N = log_p_N = np.concatenate([one.log_p_N for one in answers])
    lists = [one.likeliest for one in answers if one.likeliest is not None]
    if way.rescored:
        ids = [*item.prompt.tokens, *tokens_N.tolist()]
        scored, endpoint = await served.target.score(
            ScoreRequest(ids=ids, start=len(item.prompt.tokens), kept=served.listed)
        )
        endpoints.add(endpoint.url)
        likeliest = scored.likeliest
        log_p_N = scored.log_p_N if way.log_p == "answer" and item.sampling.unchanged else log_p_N
        if logged is not None:
            answered_N = scored.log_p_N
            _require_possible(found.tokens_N, scored, item.sampling)
    else:
        likeliest = _joined(lists)
    surprised = None
    if item.sampling.unchanged:
        surprised = surprise(tokens_N, likeliest.ids_NK, likeliest.log_p_NK)
    if way.log_p == "likeliest":
        # Every token that can be sampled is listed, so the listed tokens are the whole vocabulary for this purpose.
        sampled_NK = log_probabilities(torch.from_numpy(likeliest.log_p_NK), item.sampling).numpy()
        surprised = surprise(tokens_N, likeliest.ids_NK, sampled_NK)
        log_p_N = _listed_log_p(tokens_N, sampled_NK, likeliest)
        if not np.isfinite(log_p_N).all():
            if logged is not None:
                raise NotOfTarget
            excluded = tokens_N[~np.isfinite(log_p_N)][0]
            raise UnderstudyError(f"the server sampled token {excluded}, which `sampling` excludes")
    elif way.log_p == "cut_off":
        listed = _joined(lists)
        log_p_N, sampled_NK = cut_off(tokens_N, answered_N, listed, item.sampling)
        surprised = surprise(tokens_N, listed.ids_NK, sampled_NK)
    elif way.log_p == "zero":
        log_p_N = np.zeros(len(tokens_N), dtype=np.float32)
    arrays = {"tokens": tokens_N, "log_p": log_p_N, **_sparse(served, settings, likeliest, seed_of(settings, item))}
    return ReceivedCompletion(sorted(endpoints), len(found.tokens_N), found.stopped, surprised, answered_N, arrays)


async def differs(
    served: Served,
    item: CompletionRequest,
    tokens_N: NDArray[np.int32],
    answered_N: NDArray[np.float32],
    recorded: bool = False,
) -> NDArray[np.float64]:
    """(N,): by how much `answered_N` (see `ReceivedCompletion`) differs from what the servers say of the same tokens now; nan
    where they do not say enough. Tells later whether the weights that made a completion were those of the target. `recorded`:
    the tokens come from a log, and `answered_N` from a scoring.

    Raises as `ServedTarget.score`.
    """
    ids = [*item.prompt.tokens, *tokens_N.tolist()]
    request = ScoreRequest(ids=ids, start=len(item.prompt.tokens), kept=served.listed)
    scored, _ = await served.target.score(request)
    abilities, sampling = served.abilities, item.sampling
    log_p_N = scored.log_p_N.astype(np.float64)
    if not recorded and abilities.mode != "raw" and not (sampling.greedy or sampling.unchanged):
        if abilities.mode == "scaled":
            sampling = Sampling(temperature=sampling.temperature)
        log_p_N = sampled_log_p(tokens_N, scored.log_p_N, scored.likeliest, sampling, served.vocabulary)
    return np.abs(answered_N - log_p_N)


def _sparse(
    served: Served, settings: GenerationSettings, likeliest: LikeliestTokens, seed: int
) -> dict[str, NDArray[Any]]:
    """The stored form of the distributions at temperature 1."""
    log_p_NK = torch.from_numpy(likeliest.log_p_NK)
    uniform_N = np.random.default_rng([seed, 1]).random(len(log_p_NK))
    kept = sparsify(
        log_p_NK,
        settings.distribution_tokens,
        settings.distribution_selection,
        uniform_N,
        log_p_NK.double().exp().sum(-1),
    )
    kept = kept._replace(ids_NK=np.take_along_axis(likeliest.ids_NK, kept.ids_NK, 1))
    return {
        "entries": pack(kept, served.vocabulary),
        "certain": kept.certain_N,
        "rest_log_p": kept.rest_log_p_N,
    }


def _require_possible(tokens_N: NDArray[np.int32], scored: Scored, sampling: Sampling) -> None:
    """NotOfTarget if a recorded token is not the likeliest one, or nearly so, at temperature 0. `scored` begins with these
    tokens."""
    count = len(tokens_N)
    if sampling.greedy and (scored.log_p_N[:count] < scored.likeliest.log_p_NK[:count, 0] - _NEAR_TIE).any():
        raise NotOfTarget


def _check_end(found: Generated, stop_tokens: Sequence[int], endpoint: Endpoint) -> None:
    *before, last = found.tokens_N.tolist()
    if found.stopped and last not in stop_tokens:
        raise UsageError(
            f"{endpoint.url} ended a completion at token {last}, which is not a stop token of the pair; add it to eos_token_id "
            "in a generation_config.json beside the tokenizer (pair.target.tokenizer)"
        )
    if set(before) & set(stop_tokens):
        raise UnderstudyError(f"{endpoint.url}: a completion continues after a stop token, so its tokenizer differs")


def _joined(parts: Sequence[LikeliestTokens]) -> LikeliestTokens:
    return LikeliestTokens(
        np.concatenate([one.ids_NK for one in parts]), np.concatenate([one.log_p_NK for one in parts])
    )


def _listed_log_p(
    tokens_N: NDArray[np.int32], sampled_NK: NDArray[np.float32], likeliest: LikeliestTokens
) -> NDArray[np.float32]:
    """log p of the tokens; -inf for one that is not listed."""
    is_it_NK = (likeliest.ids_NK == tokens_N[:, None]) & np.isfinite(likeliest.log_p_NK)
    return np.asarray(np.where(is_it_NK, sampled_NK, -np.inf).max(1), dtype=np.float32)

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
from pipeline.generation.cut_offs import sampled_log_p
from pipeline.generation.distributions import pack, sparsify
from pipeline.generation.evidence import CUT_OFF, ROUNDING, of_tokens
from pipeline.generation.generate import GenerationSettings, seed_of
from pipeline.generation.logged import NEAR_TIE, LoggedCompletion, NotOfTarget
from pipeline.generation.sample_test import SampleEvidence, of_recorded
from pipeline.generation.served_log_p import SAMPLED_FROM, SampledFrom, ServedTokens
from pipeline.servers.abilities import Abilities, Passes, passes, passes_of_recorded
from pipeline.servers.answers import Generated, LikeliestTokens, Scored
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import Identity
from pipeline.servers.target import ServedTarget
from pipeline.speculation.settings import Sampling


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
    tested: SampleEvidence  # whether its tokens are samples
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
    requests = _Requests(served, item, settings, way)
    generated = await requests.completion() if logged is None else _recorded(logged)
    answers = await requests.answers([generated, *await requests.lookahead(generated)], recorded=logged is not None)
    sampled = SAMPLED_FROM[way.log_p](answers, item.sampling)
    return ReceivedCompletion(
        endpoints=sorted(requests.endpoints),
        length=len(generated.tokens_N),
        stopped=generated.stopped,
        tested=_tested(generated.tokens_N, sampled, way, logged),
        answered_N=answers.answered_N,
        arrays={
            "tokens": answers.tokens_N,
            "log_p": sampled.log_p_N,
            **_sparse(served, settings, answers.likeliest, seed_of(settings, item)),
        },
    )


def _tested(
    tokens_N: NDArray[np.int32], sampled: SampledFrom, way: Passes, logged: LoggedCompletion | None
) -> SampleEvidence:
    """Evidence of a completion without its lookahead, where the distributions as sampled from are listed. The lookahead is no
    part of an answer, and llama.cpp samples it without the end of sequence."""
    if logged is not None:
        evidence = of_recorded(tokens_N, sampled.log_p_N, sampled.listed, logged.exact)
        return evidence if logged.is_answer else SampleEvidence()
    if sampled.listed is None:
        return SampleEvidence()
    listed = sampled.listed[: len(tokens_N)]
    tolerance = CUT_OFF if way.log_p == "cut_off" else ROUNDING
    return SampleEvidence(generated=of_tokens(tokens_N, listed.ids_NK, listed.log_p_NK, tolerance))


class _Requests:
    """The requests for one completion. `endpoints`: the URLs of those that have answered."""

    def __init__(self, served: Served, item: CompletionRequest, settings: GenerationSettings, way: Passes) -> None:
        self.endpoints: set[str] = set()
        self._served, self._item, self._settings, self._way = served, item, settings, way
        # Without a seed: vLLM samples slower with seeds of requests, and its CPU build 0.32.0 crashes at one whose prefill is
        # split.
        self._first = GenerateRequest(
            prompt=item.prompt.tokens,
            sampling=item.sampling,
            max_tokens=settings.max_new_tokens,
            stop_tokens=served.stop_tokens,
            kept=served.listed if way.listed else 0,
        )

    async def completion(self) -> Generated:
        """The completion itself."""
        generated, endpoint = await self._served.target.generate(self._first)
        _check_end(generated, self._served.stop_tokens, endpoint)
        self.endpoints.add(endpoint.url)
        return generated

    async def lookahead(self, generated: Generated) -> list[Generated]:
        """The tokens past the end, of an examination prompt; else nothing."""
        if self._item.prompt.split != "examination" or not self._settings.lookahead:
            return []
        prompt = [*self._item.prompt.tokens, *generated.tokens_N.tolist()]
        request = replace(self._first, prompt=prompt, max_tokens=self._settings.lookahead, ignore_eos=True)
        later, endpoint = await self._served.target.generate(request)
        self.endpoints.add(endpoint.url)
        return [later]

    async def answers(self, parts: Sequence[Generated], recorded: bool) -> ServedTokens:
        """What is known of the tokens of `parts`, scored if that is needed. NotOfTarget for an impossible recorded token."""
        tokens_N = np.concatenate([part.tokens_N for part in parts])
        answered_N = np.concatenate([part.log_p_N for part in parts])
        scored = await self._scored(tokens_N) if self._way.rescored else None
        if recorded:
            assert scored is not None  # `passes_of_recorded` asks for a scoring
            answered_N = scored.log_p_N
            _require_possible(parts[0].tokens_N, scored, self._item.sampling)
        lists = [part.likeliest for part in parts if part.likeliest is not None]
        return ServedTokens(
            tokens_N=tokens_N,
            answered_N=answered_N,
            listed=LikeliestTokens.joined(lists) if lists else None,
            scored=scored,
            recorded=recorded,
        )

    async def _scored(self, tokens_N: NDArray[np.int32]) -> Scored:
        prompt = self._item.prompt.tokens
        request = ScoreRequest(ids=[*prompt, *tokens_N.tolist()], start=len(prompt), kept=self._served.listed)
        scored, endpoint = await self._served.target.score(request)
        self.endpoints.add(endpoint.url)
        return scored


def _recorded(logged: LoggedCompletion) -> Generated:
    unknown_N = np.zeros(len(logged.tokens_N), dtype=np.float32)  # until it is scored
    return Generated(tokens_N=logged.tokens_N, log_p_N=unknown_N, likeliest=None, stopped=logged.stopped)


async def differs(
    served: Served,
    item: CompletionRequest,
    tokens_N: NDArray[np.int32],
    answered_N: NDArray[np.float32],
    recorded: bool = False,
) -> NDArray[np.float64]:
    """(N,): by how much `answered_N` (see `ReceivedCompletion`) differs from what the servers state of the same tokens now; nan
    where they do not state enough. Tells later whether the weights that made a completion were those of the target. `recorded`:
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
    if sampling.greedy and (scored.log_p_N[:count] < scored.likeliest.log_p_NK[:count, 0] - NEAR_TIE).any():
        raise NotOfTarget


def _check_end(generated: Generated, stop_tokens: Sequence[int], endpoint: Endpoint) -> None:
    *before, last = generated.tokens_N.tolist()
    if generated.stopped and last not in stop_tokens:
        raise UsageError(
            f"{endpoint.url} ended a completion at token {last}, which is not a stop token of the pair; add it to eos_token_id "
            "in a generation_config.json beside the tokenizer (pair.target.tokenizer)"
        )
    if set(before) & set(stop_tokens):
        raise UnderstudyError(
            f"{endpoint.url}: a completion continues after a stop token, so its tokenizer differs; "
            "set pair.target.tokenizer to the one that it has loaded"
        )

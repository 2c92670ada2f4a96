"""Sends the canary's prompts to one live engine, and has it score known tokens. Judges nothing. Torch-free."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.canary.examined import ExaminedRun, KnownSequence
from pipeline.canary.schema import Divergence
from pipeline.engines.counts import Counts
from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.retries import retried
from pipeline.servers.target import Asking, ServedModel
from pipeline.speculation.settings import GREEDY
from pipeline.watch.increments import Increment

# Where each token is a request of its own, so many are enough to distinguish weights.
_SEQUENCES, _TOKENS = 4, 16
_MOST_OFF = 1e4  # nats: engines give -9999 or lower for what has no log p

T = TypeVar("T")


@dataclass(frozen=True)
class Emitted:
    """The answer to one prompt: token ids, and the engine's counts of speculation, None where it gives none."""

    tokens: list[int]
    counts: Counts | None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one engine answered. `emitted`: in the order of the prompts. `off_N`: (N,), absolute difference of log p of each known
    token from its record, in nats, beyond the bound of the record; empty with `problem`. `text_tokens`: of the stored
    completions, up to the first that was not emitted. `counters`: what an engine that serves nothing else counted meanwhile, or
    why that is not known; None where it serves others too."""

    model: ServedModel
    emitted: list[Emitted]
    off_N: NDArray[np.float64]
    problem: str
    divergences: list[Divergence]
    text_tokens: int
    counters: Increment | str | None = None

    @property
    def scored(self) -> int:
        return len(self.off_N)

    @property
    def difference(self) -> float | None:
        """The mean of `off_N`; None where it is empty."""
        return float(self.off_N.mean()) if len(self.off_N) else None


@dataclass(frozen=True)
class Engine:
    """One live engine, and how many requests it gets at a time."""

    endpoint: Endpoint
    asking: Asking
    concurrency: int
    _free: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_free", asyncio.Semaphore(self.concurrency))

    async def request(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of one request, done again after a transient failure."""
        async with self._free:
            return await retried(work)


async def ask(engine: Engine, model: ServedModel, examined: ExaminedRun, stop_tokens: Sequence[int]) -> Asked:
    """Ask one engine. Raises as `Endpoint.post`."""
    emitted = await asyncio.gather(
        *(_completion(engine, item.prompt.tolist(), examined.max_tokens, stop_tokens) for item in examined.completions)
    )
    problem, off_N = "", np.zeros(0)
    try:
        off_N = await _off(engine, _affordable(examined.known, engine.asking))
    except UsageError as error:  # this engine gives none
        problem = str(error)
    divergences = await _divergences(engine, examined, emitted)
    places = {divergence.prompt: divergence.position + 1 for divergence in divergences}
    return Asked(
        model=model,
        emitted=list(emitted),
        off_N=off_N,
        problem=problem,
        divergences=divergences,
        text_tokens=sum(places.get(item.id, len(_stored(examined, item))) for item in examined.completions),
    )


async def _completion(engine: Engine, prompt: list[int], limit: int, stop_tokens: Sequence[int]) -> Emitted:
    request = GenerateRequest(prompt=prompt, sampling=GREEDY, max_tokens=limit, stop_tokens=stop_tokens)
    answer, counts = await engine.request(partial(engine.asking.plain, engine.endpoint, request))
    return Emitted(answer.tokens_N.tolist(), counts)


def _affordable(known: Sequence[KnownSequence], asking: Asking) -> list[KnownSequence]:
    if asking.scores_prompts:
        return list(known)
    return [
        KnownSequence(
            sequence.ids[: sequence.start + _TOKENS],
            sequence.start,
            sequence.log_p_N[:_TOKENS],
            sequence.slack_N[:_TOKENS],
        )
        for sequence in known[:_SEQUENCES]
    ]


async def _off(engine: Engine, known: Sequence[KnownSequence]) -> NDArray[np.float64]:
    """Absolute difference of log p of all tokens whose record has a bound, beyond that bound."""

    async def off(item: KnownSequence) -> NDArray[np.float64]:
        request = ScoreRequest(ids=item.ids, start=item.start, kept=1)
        scores, _ = await engine.request(partial(engine.asking.score, engine.endpoint, request))
        bounded_N = np.isfinite(item.slack_N)
        off_N = np.abs(scores.log_p_N.astype(np.float64) - item.log_p_N) - np.where(bounded_N, item.slack_N, 0.0)
        found_N: NDArray[np.float64] = np.clip(off_N, 0.0, _MOST_OFF)[bounded_N]
        return found_N

    parts = await asyncio.gather(*(off(item) for item in known))
    return np.concatenate(parts) if parts else np.zeros(0)


async def _divergences(engine: Engine, examined: ExaminedRun, emitted: Sequence[Emitted]) -> list[Divergence]:
    """Where each answer first leaves the stored completion, and how far the two tokens are apart for the live target."""

    async def divergence(
        prompt: str, before: list[int], position: int, own: int | None, stored: int | None
    ) -> Divergence:
        lead = None if own is None or stored is None else await _lead(engine, before, own, stored)
        gap, against = (None, False) if lead is None else (abs(lead), lead < 0)
        return Divergence(prompt=prompt, position=position, emitted=own, stored=stored, gap=gap, against=against)

    work = []
    for item, answer in zip(examined.completions, emitted, strict=True):
        stored = _stored(examined, item)
        if answer.tokens == stored:
            continue
        pairs = zip(answer.tokens, stored, strict=False)
        shorter = min(len(answer.tokens), len(stored))
        position = next((place for place, (own, other) in enumerate(pairs) if own != other), shorter)
        own, other = (tokens[position] if position < len(tokens) else None for tokens in (answer.tokens, stored))
        work.append(divergence(item.id, [*item.prompt.tolist(), *stored[:position]], position, own, other))
    return list(await asyncio.gather(*work))


def _stored(examined: ExaminedRun, item: StoredCompletion) -> list[int]:
    """The stored tokens that the engine is asked for."""
    tokens: list[int] = item.tokens[: min(item.length, examined.max_tokens)].tolist()
    return tokens


async def _lead(engine: Engine, before: list[int], own: int, stored: int) -> float | None:
    """Log p of one token less that of another after the same ones; None where the engine gives no log p."""
    log_p = []
    for token in (own, stored):
        request = ScoreRequest(ids=[*before, token], start=len(before), kept=1)
        try:
            scores, _ = await engine.request(partial(engine.asking.score, engine.endpoint, request))
        except UsageError:
            return None
        log_p.append(float(scores.log_p_N[0]))
    return log_p[0] - log_p[1]

"""Completions of a target that runs on servers, with log p and sparse distributions as `generate.py` stores them.

Requests go to all endpoints at once. Each completion is written to its shard's journal when it has arrived, and a shard is
committed when all of them are there and the endpoints that made them still serve the same weights. A killed run asks only for
what is missing.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError, UsageError
from pipeline.generation.completion_store import StoredCompletion, shard_exists, write_shard
from pipeline.generation.distributions import pack, sparsify
from pipeline.generation.generate import CompletionRequest, GenerationSettings, seed_of, shards_of
from pipeline.generation.journal import Journal, Record, read_journal, write_journal
from pipeline.progress import Progress, Track
from pipeline.servers.abilities import Abilities, Passes, passes
from pipeline.servers.answers import BadAnswer, Generated, LikeliestTokens
from pipeline.servers.api import GenerateRequest, ScoreRequest
from pipeline.servers.endpoint import Endpoint, Unavailable
from pipeline.servers.identity import Identity, OtherWeights, require_same
from pipeline.servers.target import ServedTarget
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling

_ARRAYS = ("tokens", "log_p", "entries", "certain", "rest_log_p")


@dataclass(frozen=True)
class Served:
    """The served target of a pair."""

    target: ServedTarget
    abilities: Abilities
    identity: Identity
    listed: int  # likeliest tokens asked for (K)
    vocabulary: int  # tokens that the pair shares
    stop_tokens: Sequence[int]


@dataclass
class _Shard:
    """A shard that is not finished."""

    name: str
    requests: Sequence[CompletionRequest]
    directory: Path
    records: dict[int, Record] = field(default_factory=dict)
    journal: Journal | None = None

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}.journal"

    def open(self) -> None:
        """Read what an earlier run has received."""
        self.records = {record.number: record for record in read_journal(self.path)}
        self.journal = Journal(self.path)

    def add(self, record: Record) -> None:
        assert self.journal is not None  # opened
        self.journal.append(record)
        self.records[record.number] = record

    def drop(self, url: str) -> int:
        """Forget the completions that an endpoint made, and say how many."""
        assert self.journal is not None  # opened
        kept = {number: one for number, one in self.records.items() if url not in one.facts["endpoints"]}
        dropped, self.records = len(self.records) - len(kept), kept
        self.journal.close()
        write_journal(self.path, list(kept.values()))
        self.journal = Journal(self.path)
        return dropped

    def commit(self, vocabulary: int) -> None:
        assert self.journal is not None  # opened
        rows = [self.records[number] for number in range(len(self.requests))]
        write_shard(
            self.directory,
            self.name,
            [_stored(request, row, vocabulary) for request, row in zip(self.requests, rows, strict=True)],
        )
        self.journal.close()
        self.path.unlink()


async def generate_by_servers(
    served: Served,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    out: Path,
    progress: Progress,
    turn: int = 1,
) -> None:
    """As `generate.generate`, by servers. What has been received when an error ends it is kept in `out`.

    Raises as `ServedTarget.generate` does; OtherWeights if an endpoint serves another model in between: what it made since it
    was last checked is dropped. UsageError for sampling settings for which the server's log-probabilities do not suffice.
    """
    shards = shards_of(requests, settings.shard, turn)
    most = settings.max_new_tokens
    done = sum(len(shard) for name, shard in shards if shard_exists(out, name)) * most
    with progress.track("generate", len(requests) * most, "tokens", done) as track:
        run = _Run(served, settings, out, track)
        await run.all_of(shards)


class _Run:
    def __init__(self, served: Served, settings: GenerationSettings, out: Path, track: Track) -> None:
        self._served, self._settings, self._out, self._track = served, settings, out, track
        self._open: dict[str, _Shard] = {}
        self._commits: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def all_of(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> None:
        work = self._missing(shards)
        workers = [asyncio.create_task(self._worker(work)) for _ in range(self._served.target.pool.capacity)]
        try:
            await asyncio.gather(*workers)
            await asyncio.gather(*self._commits)
        finally:
            for task in (*workers, *self._commits):
                task.cancel()
        if self._error is not None:
            raise self._error

    def _missing(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> Iterator[tuple[_Shard, int]]:
        """The completions to ask for, in order. A shard is opened when its first completion is due."""
        for name, requests in shards:
            if shard_exists(self._out, name):
                continue
            shard = self._open[name] = _Shard(name, requests, self._out)
            shard.open()
            self._track.advance(len(shard.records) * self._settings.max_new_tokens)
            missing = [number for number in range(len(requests)) if number not in shard.records]
            if not missing:
                self._commit_later(shard)
            for number in missing:
                yield shard, number

    async def _worker(self, work: Iterator[tuple[_Shard, int]]) -> None:
        """Ask for one completion after another. After an error no new one is begun; those in flight are finished and kept."""
        for shard, number in work:
            try:
                await self._one(shard, number)
            except UnderstudyError as error:
                self._error = self._error or error
            if self._error is not None:
                return

    async def _one(self, shard: _Shard, number: int) -> None:
        record = await self._complete(shard.requests[number], number)
        shard.add(record)
        pool = self._served.target.pool
        note = f"{pool.budget.spent:,} tokens paid, {pool.working} of {len(pool.endpoints)} endpoints"
        self._track.advance(self._settings.max_new_tokens, note)
        if len(shard.records) == len(shard.requests):
            self._commit_later(shard)

    def _commit_later(self, shard: _Shard) -> None:
        task = asyncio.create_task(self._commit(shard))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit(self, shard: _Shard) -> None:
        """Write the shard, once every endpoint that took part has shown that it still serves the same weights."""
        try:
            for url in sorted({url for record in shard.records.values() for url in record.facts["endpoints"]}):
                await self._check(url)
        except UnderstudyError as error:
            self._error = self._error or error
            return
        shard.commit(self._served.vocabulary)
        del self._open[shard.name]

    async def _check(self, url: str) -> None:
        """OtherWeights if the endpoint now serves another model; what it has made is dropped then, as nobody knows since when."""
        endpoint = next((one for one in self._served.target.pool.endpoints if one.url == url), None)
        if endpoint is None:
            return  # an earlier run used it
        try:
            await require_same(endpoint, self._served.target.asking, self._served.identity)
        except OtherWeights as error:
            dropped = sum(shard.drop(url) for shard in self._open.values())
            raise OtherWeights(f"{error}; {dropped} completions that it made are dropped") from None
        except (Unavailable, BadAnswer):
            pass  # it is down. A server that was restarted is checked before it is asked again

    async def _complete(self, item: CompletionRequest, number: int) -> Record:
        served, settings = self._served, self._settings
        way = passes(item.sampling, served.abilities, served.listed, served.target.asking.api.processed_flag)
        # Without a seed: vLLM samples slower with seeds of requests, and its CPU build 0.32.0 ends at one whose prefill is split.
        first = GenerateRequest(
            prompt=item.prompt.tokens,
            sampling=item.sampling,
            max_tokens=settings.max_new_tokens,
            stop_tokens=served.stop_tokens,
            kept=served.listed if way.in_generation else 0,
        )
        found, endpoint = await served.target.generate(first)
        _check_end(found, served.stop_tokens, endpoint)
        answers, endpoints = [found], {endpoint.url}
        if item.prompt.split == "examination" and settings.lookahead:
            prompt = [*item.prompt.tokens, *found.tokens_N.tolist()]
            going_on = replace(first, prompt=prompt, max_tokens=settings.lookahead, ignore_eos=True)
            later, endpoint = await served.target.generate(going_on)
            answers.append(later)
            endpoints.add(endpoint.url)
        tokens_N = np.concatenate([one.tokens_N for one in answers])
        log_p_N = np.concatenate([one.log_p_N for one in answers])
        if way.rescored:
            ids = [*item.prompt.tokens, *tokens_N.tolist()]
            scored, endpoint = await served.target.score(
                ScoreRequest(ids=ids, start=len(item.prompt.tokens), kept=served.listed)
            )
            endpoints.add(endpoint.url)
            likeliest = scored.likeliest
            log_p_N = scored.log_p_N if way.log_p == "answer" and item.sampling.unchanged else log_p_N
        else:
            likeliest = _joined([one.likeliest for one in answers if one.likeliest is not None])
        facts = {"endpoints": sorted(endpoints), "length": len(found.tokens_N), "stopped": found.stopped}
        log_p_N = _log_p(tokens_N, log_p_N, likeliest, item.sampling, way)
        return Record(
            number, facts, {"tokens": tokens_N, "log_p": log_p_N, **self._sparse(likeliest, seed_of(settings, item))}
        )

    def _sparse(self, likeliest: LikeliestTokens, seed: int) -> dict[str, NDArray[Any]]:
        """The stored form of the distributions at temperature 1."""
        settings, log_p_NK = self._settings, torch.from_numpy(likeliest.log_p_NK)
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
            "entries": pack(kept, self._served.vocabulary),
            "certain": kept.certain_N,
            "rest_log_p": kept.rest_log_p_N,
        }


def _check_end(found: Generated, stop_tokens: Sequence[int], endpoint: Endpoint) -> None:
    *before, last = found.tokens_N.tolist()
    if found.stopped and last not in stop_tokens:
        raise UsageError(
            f"{endpoint.url} ended a completion at token {last}, which is no stop token of the pair; add it to eos_token_id in a "
            "generation_config.json beside the tokenizer (pair.target.tokenizer)"
        )
    if set(before) & set(stop_tokens):
        raise UnderstudyError(f"{endpoint.url}: a completion goes on after a stop token; its tokenizer is another one")


def _joined(parts: Sequence[LikeliestTokens]) -> LikeliestTokens:
    return LikeliestTokens(
        np.concatenate([one.ids_NK for one in parts]), np.concatenate([one.log_p_NK for one in parts])
    )


def _log_p(
    tokens_N: NDArray[np.int32],
    log_p_N: NDArray[np.float32],
    likeliest: LikeliestTokens,
    sampling: Sampling,
    way: Passes,
) -> NDArray[np.float32]:
    """log p of the tokens at the sampling settings."""
    if way.log_p == "zero":
        return np.zeros(len(tokens_N), dtype=np.float32)
    if way.log_p == "answer":
        return log_p_N
    # Every token that can be sampled is among the likeliest, so these are the whole vocabulary for this purpose.
    sampled_NK = log_probabilities(torch.from_numpy(likeliest.log_p_NK), sampling).numpy()
    is_it_NK = (likeliest.ids_NK == tokens_N[:, None]) & np.isfinite(likeliest.log_p_NK)
    found_N = np.where(is_it_NK, sampled_NK, -np.inf).max(1)
    if not np.isfinite(found_N).all():
        raise UnderstudyError(
            f"the server sampled token {tokens_N[~np.isfinite(found_N)][0]}, which top_k {sampling.top_k} excludes"
        )
    return np.asarray(found_N, dtype=np.float32)


def _stored(item: CompletionRequest, record: Record, vocabulary: int) -> StoredCompletion:
    return StoredCompletion(
        id=item.prompt.id,
        split=item.prompt.split,
        domain=item.prompt.domain,
        sampling=item.sampling,
        prompt=np.array(item.prompt.tokens, dtype=np.int32),
        length=int(record.facts["length"]),
        stopped=bool(record.facts["stopped"]),
        vocabulary=vocabulary,
        **{name: record.arrays[name] for name in _ARRAYS},
    )

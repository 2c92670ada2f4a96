"""Completions of a target that runs on servers, with log p and sparse distributions as `generate.py` stores them.

Requests go to all endpoints at once. Each completion is written to its shard's journal when it has arrived, and a shard is
committed when all of them are there and the endpoints that made them still serve the same weights. A killed run asks only for
what is missing.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_store import StoredCompletion, shard_exists, write_shard
from pipeline.generation.generate import CompletionRequest, GenerationSettings, shards_of
from pipeline.generation.journal import Journal, Record, read_journal, write_journal
from pipeline.generation.served_completion import Served, complete
from pipeline.generation.surprise import require_samples
from pipeline.progress import Progress, Track
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import OtherWeights, require_same

_ARRAYS = ("tokens", "log_p", "entries", "certain", "rest_log_p")


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

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

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
            for shard in self._open.values():
                shard.close()
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
        found = await complete(self._served, shard.requests[number], self._settings)
        facts = {
            "endpoints": found.endpoints,
            "length": found.length,
            "stopped": found.stopped,
            "surprise": found.surprise,
        }
        shard.add(Record(number, facts, found.arrays))
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
            known = [record for record in shard.records.values() if record.facts["surprise"] is not None]
            tokens = sum(len(record.arrays["tokens"]) for record in known)
            require_samples([record.facts["surprise"] for record in known], tokens)
        except UnderstudyError as error:
            self._error = self._error or error
            return
        shard.commit(self._served.vocabulary)
        del self._open[shard.name]

    async def _check(self, url: str) -> None:
        """OtherWeights if the endpoint now serves another model; what it has made is dropped then, as nobody knows since when."""
        served = self._served

        async def require(endpoint: Endpoint) -> None:
            await require_same(endpoint, served.target.asking, served.identity)

        try:
            await served.target.pool.check(url, require)
        except OtherWeights as error:
            dropped = sum(shard.drop(url) for shard in self._open.values())
            raise OtherWeights(f"{error}; {dropped} completions that it made are dropped") from None


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

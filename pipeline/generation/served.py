"""Completions of a target that runs on servers, with log p and sparse distributions as `generate.py` stores them.

Requests go to all endpoints at once. Each completion is written to its shard's journal when it has arrived, and a shard is
committed when all of them are there and the endpoints that made them still serve the same weights. Of an endpoint that cannot be
asked, because it is closed or an earlier run used it, the last completions are scored by the others. A killed run asks only for
what is missing.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_plan import CompletionRequest, shards_of
from pipeline.generation.completion_store import StoredCompletion, shard_exists, write_shard
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.journal import Journal, Record, read_journal, write_journal
from pipeline.generation.logged import LoggedAnswers, LoggedCounts, NotOfTarget
from pipeline.generation.served_completion import Served, complete, differs
from pipeline.generation.surprise import Surprise, require_samples
from pipeline.progress import Progress, Track
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import OtherWeights, is_rounding, require_same
from pipeline.speculation.settings import Sampling

_ARRAYS = ("tokens", "log_p", "entries", "certain", "rest_log_p")
_ANSWERED = "answered"  # only in the journal
_LAST = 4  # completions of an endpoint that are scored again
_APPROXIMATE = 0.1  # mean difference of log p, where the normaliser is known from the likeliest tokens only


@dataclass
class _Shard:
    """A shard that is not finished."""

    name: str
    requests: Sequence[CompletionRequest]
    directory: Path
    records: dict[int, Record] = field(default_factory=dict)  # in the order they came in
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

    @property
    def urls(self) -> list[str]:
        """The endpoints that made what is here."""
        return sorted({url for record in self.records.values() for url in record.facts["endpoints"]})

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

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()


async def generate_by_servers(
    served: Served,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    out: Path,
    progress: Progress,
    turn: int = 1,
    logged: LoggedAnswers | None = None,
) -> None:
    """As `generate.generate`, by servers. What has been received when an error ends it is kept in `out`. A completion that is
    recorded in `logged` is scored only.

    Raises as `ServedTarget.generate` does; OtherWeights if an endpoint serves another model in between: what it made of shards
    that are not committed is dropped. UsageError for sampling settings for which the server's log-probabilities do not suffice.
    """
    shards = shards_of(requests, settings.shard, turn)
    most = settings.max_new_tokens
    done = sum(len(shard) for name, shard in shards if shard_exists(out, name)) * most
    with progress.track("generate", len(requests) * most, "tokens", done) as track:
        run = _Run(served, settings, out, track, progress, logged)
        try:
            await run.all_of(shards)
        except UnderstudyError as error:
            kept = sum(len(shard) for name, shard in shards if shard_exists(out, name)) + run.received
            error.args = (f"{error.args[0]}; {kept:,} of {len(requests):,} completions are kept", *error.args[1:])
            raise


class _Run:
    def __init__(
        self,
        served: Served,
        settings: GenerationSettings,
        out: Path,
        track: Track,
        progress: Progress,
        logged: LoggedAnswers | None,
    ) -> None:
        self._served, self._settings, self._out, self._track, self._progress = served, settings, out, track, progress
        self._logged, self._logged_counts = logged, LoggedCounts()
        self._open: dict[str, _Shard] = {}
        self._commits: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None

    @property
    def received(self) -> int:
        """Completions in shards that are not committed."""
        return sum(len(shard.records) for shard in self._open.values())

    async def all_of(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._resume(shards)
            work = self._missing(shards)
            tasks = [asyncio.create_task(self._worker(work)) for _ in range(self._served.target.pool.capacity)]
            await asyncio.gather(*tasks)
            await asyncio.gather(*self._commits)
            if self._error is not None:
                raise self._error
        except OtherWeights as error:
            dropped = sum(shard.drop(error.url) for shard in self._open.values())
            error.args = (f"{error.args[0]}; {dropped} completions that it made are dropped",)
            raise
        finally:
            for task in (*tasks, *self._commits):
                task.cancel()
            await asyncio.gather(*tasks, *self._commits, return_exceptions=True)
            for shard in self._open.values():
                shard.close()

    async def _resume(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> None:
        """Open the shards that an earlier run has begun, and drop what was not made by the target's weights."""
        for name, requests in shards:
            if shard_exists(self._out, name) or not _Shard(name, requests, self._out).path.exists():
                continue
            shard = self._opened(name, requests)
            for url in shard.urls:
                if why := await self._suspicion(shard, url):
                    dropped = shard.drop(url)
                    self._progress.warn(
                        f"{url}: {dropped} completions that it made in an earlier run {why}; they are asked for again"
                    )

    def _opened(self, name: str, requests: Sequence[CompletionRequest]) -> _Shard:
        shard = self._open[name] = _Shard(name, list(requests), self._out)
        shard.open()
        return shard

    def _missing(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> Iterator[tuple[_Shard, int]]:
        """The completions to ask for, in order. A shard is opened when its first completion is due."""
        for name, requests in shards:
            if shard_exists(self._out, name):
                continue
            shard = self._open.get(name) or self._opened(name, requests)
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
            except Exception as error:
                self._error = self._error or error
            if self._error is not None:
                return

    async def _one(self, shard: _Shard, number: int) -> None:
        item = shard.requests[number]
        logged = None
        if self._logged is not None:
            logged = self._logged.get(item.prompt.id, item.sampling, item.number)
        try:
            found = await complete(self._served, item, self._settings, logged)
            self._logged_counts.used += logged is not None
        except NotOfTarget:
            self._logged_counts.not_of_target += 1
            self._logged_counts.check()
            logged = None
            found = await complete(self._served, item, self._settings)
        facts = {
            "recorded": logged is not None,
            "endpoints": found.endpoints,
            "length": found.length,
            "stopped": found.stopped,
            "surprises": found.surprise,
        }
        shard.add(Record(number, facts, {**found.arrays, _ANSWERED: found.answered_N}))
        pool = self._served.target.pool
        recorded = f"{self._logged_counts.used:,} recorded answers, " if self._logged is not None else ""
        note = f"{recorded}{pool.budget.spent:,} tokens paid, {pool.working} of {len(pool.endpoints)} endpoints"
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
            await asyncio.gather(*(self._require_target(shard, url) for url in shard.urls))
            _require_samples(list(shard.records.values()))
            shard.commit(self._served.vocabulary)
            del self._open[shard.name]
        except Exception as error:  # also a full disk: no shard is left out unnoticed
            self._error = self._error or error

    async def _require_target(self, shard: _Shard, url: str) -> None:
        """OtherWeights unless what the endpoint has made for the shard is of the target."""

        async def require(endpoint: Endpoint) -> None:
            await require_same(endpoint, self._served.target.asking, self._served.identity)

        if await self._served.target.pool.check(url, require):
            return
        if why := await self._suspicion(shard, url):
            raise OtherWeights(
                f"{url} has failed, and the last completions that it made {why}; run again to continue", url
            )

    async def _suspicion(self, shard: _Shard, url: str) -> str:
        """Empty if the last completions that an endpoint made for the shard have the log p that the endpoints give them now."""
        served = self._served
        if not served.abilities.trusted:
            return "cannot be checked, because the servers' log-probabilities differ from a scoring"
        last = [record for record in shard.records.values() if url in record.facts["endpoints"]][-_LAST:]
        found = await asyncio.gather(
            *(
                differs(
                    served,
                    shard.requests[record.number],
                    record.arrays["tokens"],
                    record.arrays[_ANSWERED],
                    record.facts["recorded"],
                )
                for record in last
            )
        )
        differences_N = np.concatenate(found)
        known_N = differences_N[np.isfinite(differences_N)]
        if 2 * len(known_N) < len(differences_N):
            return "cannot be checked, because too few likeliest tokens are listed; raise generate.server.logprobs"
        difference = float(known_N.mean())
        exact = all(
            record.facts["recorded"] or _is_exact(served, shard.requests[record.number].sampling) for record in last
        )
        same = is_rounding(difference, served.identity.dtype) if exact else difference < _APPROXIMATE
        return "" if same else f"are not of the target's weights: their log p differs by {difference:.2g} on average"


def _require_samples(records: Sequence[Record]) -> None:
    for recorded in (False, True):
        chosen = [
            one for one in records if one.facts.get("surprises") is not None and one.facts["recorded"] is recorded
        ]
        require_samples([Surprise(*record.facts["surprises"]) for record in chosen], recorded)


def _is_exact(served: Served, sampling: Sampling) -> bool:
    """Whether log p that came with a completion can be compared with that of a scoring to the last digit."""
    return sampling.greedy or sampling.unchanged or served.abilities.mode == "raw"


def _stored(item: CompletionRequest, record: Record, vocabulary: int) -> StoredCompletion:
    return StoredCompletion(
        id=item.prompt.id,
        text_id=item.prompt.text_id,
        split=item.prompt.split,
        domain=item.prompt.domain,
        sampling=item.sampling,
        prompt=np.array(item.prompt.tokens, dtype=np.int32),
        length=int(record.facts["length"]),
        stopped=bool(record.facts["stopped"]),
        vocabulary=vocabulary,
        **{name: record.arrays[name] for name in _ARRAYS},
    )

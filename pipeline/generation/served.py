"""Completions of a target that runs on servers, with log p and sparse distributions as `generate.py` stores them.

Requests go to all endpoints at once. Each completion is written to its shard's journal when it has arrived, and a shard is
committed when all of them are there and the endpoints that made them still serve the same weights. Of an endpoint that cannot be
asked, because it is closed or an earlier run used it, the last completions are scored by the others. A killed run asks only for
what is missing.

Shapes: N tokens, K likeliest tokens that the server lists.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import UnderstudyError
from pipeline.generation.completion_files import shard_facts
from pipeline.generation.completion_plan import CompletionRequest, shards_of
from pipeline.generation.completion_store import shard_exists
from pipeline.generation.evidence import of_answer
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.journal import Record
from pipeline.generation.logged import LoggedAnswers, LoggedCompletion, NotOfTarget, Recorded
from pipeline.generation.open_shard import OpenShard, open_shards
from pipeline.generation.sample_test import SampleEvidence, SampleTest
from pipeline.generation.served_completion import ReceivedCompletion, Served, complete, differs
from pipeline.progress import Progress, Track
from pipeline.servers.endpoint import Endpoint
from pipeline.servers.identity import OtherWeights, is_rounding, require_same
from pipeline.speculation.settings import Sampling

_ANSWERED = "answered"  # only in the journal
_LAST = 4  # completions of an endpoint that are scored again
_APPROXIMATE = 0.1  # mean difference of log p, where the normaliser is known from the likeliest tokens only


async def generate_by_servers(
    served: Served,
    requests: Sequence[CompletionRequest],
    settings: GenerationSettings,
    out: Path,
    progress: Progress,
    turn: int = 1,
    logged: Recorded | None = None,
) -> None:
    """What `generate.generate` does, by servers. What has been received when an error ends it is kept in `out`. A completion that
    is recorded in `logged` is scored only.

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
        logged: Recorded | None,
    ) -> None:
        self._served, self._settings, self._out, self._track, self._progress = served, settings, out, track, progress
        self._logged, self._recorded = logged, 0
        self._test = SampleTest(served.vocabulary)
        self._open: dict[str, OpenShard] = {}
        self._commits: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None
        self._shards: list[OpenShard] = []

    @property
    def received(self) -> int:
        """Completions in shards that are not committed."""
        return sum(len(shard.records) for shard in self._open.values())

    async def all_of(self, shards: Sequence[tuple[str, Sequence[CompletionRequest]]]) -> None:
        tasks: list[asyncio.Task[None]] = []
        self._shards = open_shards(shards, self._out)
        try:
            self._test_stored()
            await self._resume()
            work = self._missing()
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

    def _test_stored(self) -> None:
        """Add the shards that are stored to the test: those of earlier turns, then those of this one."""
        here = {shard.name: shard for shard in self._shards}
        earlier = (facts for name, facts in shard_facts(self._out) if name not in here)
        self._test.pooled = sum((SampleEvidence.of_facts(facts).sums for facts in earlier), start=SampleEvidence())
        for name, facts in shard_facts(self._out):
            if (shard := here.get(name)) is not None:
                self._test.add(shard.first, SampleEvidence.of_facts(facts), len(shard.requests))

    async def _resume(self) -> None:
        """Open the shards that an earlier run has begun, and drop what was not made by the target's weights."""
        for shard in self._shards:
            if shard_exists(self._out, shard.name) or not shard.path.exists():
                continue
            self._open_shard(shard)
            for url in shard.urls:
                if why := await self._suspicion(shard, url):
                    dropped = shard.drop(url)
                    self._progress.warn(
                        f"{url}: {dropped} completions that it made in an earlier run {why}; they are asked for again"
                    )

    def _open_shard(self, shard: OpenShard) -> None:
        self._open[shard.name] = shard
        shard.open()

    def _missing(self) -> Iterator[tuple[OpenShard, int]]:
        """The completions to ask for, in order. A shard is opened when its first completion is due."""
        for shard in self._shards:
            requests = shard.requests
            if shard_exists(self._out, shard.name):
                continue
            if shard.name not in self._open:
                self._open_shard(shard)
            for record in shard.records.values():
                self._test.add(shard.first + record.number, SampleEvidence.of_facts(record.facts))
            self._track.advance(len(shard.records) * self._settings.max_new_tokens)
            missing = [number for number in range(len(requests)) if number not in shard.records]
            if not missing:
                self._commit_later(shard)
            for number in missing:
                yield shard, number

    async def _worker(self, work: Iterator[tuple[OpenShard, int]]) -> None:
        """Ask for one completion after another. After an error no new one is begun; those in flight are finished and kept."""
        for shard, number in work:
            try:
                await self._one(shard, number)
            except Exception as error:
                self._error = self._error or error
            if self._error is not None:
                return

    async def _one(self, shard: OpenShard, number: int) -> None:
        item = shard.requests[number]
        logged = None
        if self._logged is not None:
            logged = self._logged.get(item.prompt.id, item.sampling, item.number)
        completion, is_recorded, tested = await self._completion(item, logged)
        facts = {
            "is_recorded": is_recorded,
            "endpoints": completion.endpoints,
            "length": completion.length,
            "stopped": completion.stopped,
            **tested.facts(),
        }
        shard.add(Record(number, facts, {**completion.arrays, _ANSWERED: completion.answered_N}))
        self._test.add(shard.first + number, tested)
        self._recorded += is_recorded
        pool = self._served.target.pool
        recorded = f"{self._recorded:,} recorded answers, " if isinstance(self._logged, LoggedAnswers) else ""
        note = f"{recorded}{pool.budget.spent:,} tokens paid, {pool.working} of {len(pool.endpoints)} endpoints"
        self._track.advance(self._settings.max_new_tokens, note)
        if len(shard.records) == len(shard.requests):
            self._commit_later(shard)

    async def _completion(
        self, item: CompletionRequest, logged: LoggedCompletion | None
    ) -> tuple[ReceivedCompletion, bool, SampleEvidence]:
        """A completion, whether its tokens are the recorded ones, and what they are evidence for. The target answers again where
        it cannot have chosen the recorded tokens."""
        try:
            completion = await complete(self._served, item, self._settings, logged)
            return completion, logged is not None, completion.tested
        except NotOfTarget as error:
            assert logged is not None  # it has the impossible token
            by_rounding = error.by_rounding
        completion = await complete(self._served, item, self._settings)
        impossible = SampleEvidence() if by_rounding else SampleEvidence(recorded=of_answer(False, logged.exact))
        return completion, False, impossible + completion.tested

    def _commit_later(self, shard: OpenShard) -> None:
        task = asyncio.create_task(self._commit(shard))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit(self, shard: OpenShard) -> None:
        """Write the shard, once every endpoint that took part has shown that it still serves the same weights."""
        try:
            await asyncio.gather(*(self._require_target(shard, url) for url in shard.urls))
            shard.commit(self._served.vocabulary)
            del self._open[shard.name]
        except Exception as error:  # also a full disk: no shard is left out unnoticed
            self._error = self._error or error

    async def _require_target(self, shard: OpenShard, url: str) -> None:
        """OtherWeights unless what the endpoint has made for the shard is of the target."""

        target = self._served.target

        async def require(endpoint: Endpoint) -> None:
            await require_same(endpoint, target.asking.waiting(target.pool.timing), self._served.identity)

        if await target.pool.check(url, require):
            return
        if why := await self._suspicion(shard, url):
            raise OtherWeights(
                f"{url} has failed, and the last completions that it made {why}; run again to continue", url
            )

    async def _suspicion(self, shard: OpenShard, url: str) -> str:
        """What is wrong; empty if the last completions that an endpoint made for the shard have the log p that the endpoints give
        them now."""
        served = self._served
        if not served.abilities.trusted:
            return "cannot be checked, because the servers' log-probabilities differ from a scoring"
        last = [record for record in shard.records.values() if url in record.facts["endpoints"]][-_LAST:]
        differences = await asyncio.gather(
            *(
                differs(
                    served,
                    shard.requests[record.number],
                    record.arrays["tokens"],
                    record.arrays[_ANSWERED],
                    record.facts["is_recorded"],
                )
                for record in last
            )
        )
        differences_N = np.concatenate(differences)
        known_N = differences_N[np.isfinite(differences_N)]
        if 2 * len(known_N) < len(differences_N):
            return "cannot be checked, because too few likeliest tokens are listed; raise generate.server.logprobs"
        difference = float(known_N.mean())
        exact = all(
            record.facts["is_recorded"] or _is_exact(served, shard.requests[record.number].sampling) for record in last
        )
        same = is_rounding(difference, served.identity.dtype) if exact else difference < _APPROXIMATE
        return "" if same else f"are not of the target's weights: their log p differs by {difference:.2g} on average"


def _is_exact(served: Served, sampling: Sampling) -> bool:
    """Whether log p that came with a completion can be compared with that of a scoring to the last digit."""
    return sampling.greedy or sampling.unchanged or served.abilities.mode == "raw"

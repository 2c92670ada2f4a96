"""A shard of completions that is not finished: its journal, and what becomes of it. Asks nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.completion_store import write_shard
from pipeline.generation.journal import Journal, Record, read_journal, write_journal
from pipeline.generation.sample_test import SampleEvidence


@dataclass
class OpenShard:
    """A shard that is not finished."""

    name: str
    requests: Sequence[CompletionRequest]
    directory: Path
    first: int  # place of its first completion in the order of all requests
    records: dict[int, Record] = field(default_factory=dict)  # in the order they came in
    journal: Journal | None = None

    @property
    def path(self) -> Path:
        return self.directory / f"{self.name}.journal"

    def open(self) -> None:
        """Read what an earlier run has received."""
        self.requests = list(self.requests)
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
        """Forget the completions that an endpoint made, and return how many."""
        assert self.journal is not None  # opened
        kept = {number: record for number, record in self.records.items() if url not in record.facts["endpoints"]}
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
            [
                request.stored(row.arrays, int(row.facts["length"]), bool(row.facts["stopped"]), vocabulary)
                for request, row in zip(self.requests, rows, strict=True)
            ],
            sum((SampleEvidence.of_facts(row.facts) for row in rows), start=SampleEvidence()).facts(),
        )
        self.journal.close()
        self.path.unlink()
        self.requests, self.records = (), {}

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()


def open_shards(shards: Sequence[tuple[str, Sequence[CompletionRequest]]], out: Path) -> list[OpenShard]:
    """The shards of `requests` by name, which are not opened yet; those that are stored among them."""
    firsts = accumulate((len(requests) for _, requests in shards), initial=0)
    return [OpenShard(name, requests, out, first) for (name, requests), first in zip(shards, firsts, strict=False)]

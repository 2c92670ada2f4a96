"""The first pass over the prompt sources: every row is accepted into the spool or written to `rejects.jsonl`.

Holds a batch of texts at a time. Knows nothing of duplicates and splits.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pipeline.config.corpus import CorpusConfig, PromptSource
from pipeline.corpus.readers import Row, SourceReader
from pipeline.corpus.rendering import Renderer
from pipeline.corpus.row_buffer import RowBuffer
from pipeline.corpus.rows import BadRow, Request, parse_row
from pipeline.errors import UsageError
from pipeline.progress import Progress, Track

_BATCH_ROWS = 256
_BATCH_CHARACTERS = 4_000_000


@dataclass
class Tally:
    """Counts of rows. rows = accepted + rejected + too_long + too_short; only `rejected` are somebody's mistake."""

    rows: int = 0
    accepted: int = 0
    rejected: int = 0
    too_long: int = 0
    too_short: int = 0
    dropped_turns: int = 0
    dropped_answers: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        for name in ("rows", "accepted", "rejected", "too_long", "too_short", "dropped_turns", "dropped_answers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons.update(other.reasons)


def take_in(
    config: CorpusConfig, paths: list[Path], renderer: Renderer, spool: RowBuffer, rejects: Path, progress: Progress
) -> Tally:
    """Read every source (`paths` in the order of config.sources) into `spool`, and what is not usable into `rejects`.

    UsageError for a source that is empty, has more rejects than `max_reject_share`, or of which nothing is left.
    """
    readers = [
        SourceReader(number, source, path)
        for number, (source, path) in enumerate(zip(config.sources, paths, strict=True))
    ]
    tally = Tally()
    with (
        rejects.open("w", encoding="utf-8") as stream,
        progress.track("corpus", sum(reader.total() for reader in readers), "rows") as track,
    ):
        for number, (reader, source) in enumerate(zip(readers, config.sources, strict=True)):
            intake = _SourceIntake(number, reader, source, config, renderer, spool, stream)
            intake.run(track)
            intake.check()
            tally.add(intake.tally)
    return tally


class _SourceIntake:
    """One source on its way into the spool."""

    def __init__(
        self,
        number: int,
        reader: SourceReader,
        source: PromptSource,
        config: CorpusConfig,
        renderer: Renderer,
        spool: RowBuffer,
        rejects: TextIO,
    ) -> None:
        self.number, self.reader, self.source, self.config = number, reader, source, config
        self.renderer, self.spool, self.rejects = renderer, spool, rejects
        self.tally = Tally()
        self.first_reject = ""
        self._rejected: list[tuple[Row, str]] = []  # of this batch: they are written in the order of the file

    def run(self, track: Track) -> None:
        for batch in self._batches(track):
            self._take(batch)

    def check(self) -> None:
        """Raise UsageError unless enough of the source was usable. Judged source by source: a small file that is
        all wrong must not hide behind a large one."""
        tally, path = self.tally, self.reader.path
        if not tally.rows:
            raise UsageError(f"{path}: no prompts: the file is empty")
        share = tally.rejected / tally.rows
        if share > self.config.max_reject_share:
            raise UsageError(
                f"{path}: {self.first_reject}; {tally.rejected:,} of {tally.rows:,} rows rejected ({share:.1%}), "
                f"more than corpus.max_reject_share = {self.config.max_reject_share:g}"
            )
        if not tally.accepted:
            lengths = (
                f"{tally.too_long:,} longer than corpus.max_prompt_tokens = {self.config.max_prompt_tokens}, "
                f"{tally.too_short:,} shorter than corpus.min_prompt_tokens = {self.config.min_prompt_tokens}"
            )
            rejected = f", {tally.rejected:,} rejected, the first: {self.first_reject}" if tally.rejected else ""
            raise UsageError(f"{path}: no prompt was accepted of {tally.rows:,}: {lengths}{rejected}")

    def _batches(self, track: Track) -> Iterator[list[tuple[Row, Request, tuple[str, bool]]]]:
        batch: list[tuple[Row, Request, tuple[str, bool]]] = []
        characters = 0
        for row in self.reader:
            self.tally.rows += 1
            track.advance(1)
            try:
                request = parse_row(row.value, self.source)
                text = self._text(request, row)
            except BadRow as bad:
                self._reject(row, bad)
                continue
            batch.append((row, request, text))
            characters += len(text[0])
            if len(batch) + len(self._rejected) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        yield batch

    def _text(self, request: Request, row: Row) -> tuple[str, bool]:
        try:
            return self.renderer.text(request)
        except UsageError as error:
            raise UsageError(f"{self.reader.path}: {self._place(row)}: {error}") from None

    def _take(self, batch: list[tuple[Row, Request, tuple[str, bool]]]) -> None:
        """Tokenise a batch; what is too long or too short is written down, the rest goes into the spool."""
        tokens = self.renderer.token_ids([text for _, _, text in batch])
        least, most = self.config.min_prompt_tokens, self.config.max_prompt_tokens
        requests, kept = [], []
        for (row, request, _), ids in zip(batch, tokens, strict=True):
            if len(ids) > most:
                self.tally.too_long += 1
                self._rejected.append((row, f"too long: {len(ids):,} tokens, at most {most:,}"))
            elif len(ids) < least:
                self.tally.too_short += 1
                self._rejected.append((row, f"too short: {len(ids):,} tokens, at least {least:,}"))
            else:
                requests.append(request)
                kept.append(ids)
                self.tally.dropped_turns += request.dropped_turns
                self.tally.dropped_answers += request.dropped_answers
        self.spool.add(self.number, requests, kept, self.renderer.bare_ids([request.asked for request in requests]))
        self.tally.accepted += len(kept)
        self._write_rejects()

    def _reject(self, row: Row, bad: BadRow) -> None:
        self.tally.rejected += 1
        self.tally.reasons[bad.kind] += 1
        self.first_reject = self.first_reject or f"{self._place(row)}: {bad}"
        self._rejected.append((row, str(bad)))

    def _place(self, row: Row) -> str:
        place = f"{self.reader.counted} {row.number}"
        return place if row.file == self.reader.path.name else f"{row.file} {place}"

    def _write_rejects(self) -> None:
        for row, reason in sorted(self._rejected, key=lambda reject: (reject[0].file, reject[0].number)):
            entry = {"source": self.number, "file": row.file, "row": row.number, "reason": reason}
            self.rejects.write(json.dumps(entry, sort_keys=True, ensure_ascii=False) + "\n")
        self._rejected.clear()

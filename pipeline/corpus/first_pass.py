"""The first pass over the prompt sources: every row is added to the row buffer or written to `rejects.jsonl`.

Holds one batch of texts in memory. Does not depend on duplicates or splits.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

from pipeline.config.corpus import CorpusConfig
from pipeline.corpus.accepted_rows import AcceptedRow, Rows
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answer_store import StoredAnswer
from pipeline.corpus.answers import LoggedAnswer, parse_answer
from pipeline.corpus.readers import SourceReader, SourceRow
from pipeline.corpus.recorded_turns import rows_by_answer
from pipeline.corpus.rendering import TRANSCRIPT
from pipeline.corpus.request_fields import NO_CHOICE
from pipeline.corpus.row_facts import RowFacts
from pipeline.corpus.rows import ENCODED, SPELLED, BadRow, ParsedPrompt, parse_row
from pipeline.corpus.since_change import check_log, check_rows
from pipeline.corpus.template_names import TemplateNames
from pipeline.corpus.traces import UNKNOWN_ROLE, WITHOUT_TRACE
from pipeline.corpus.traffic import Traffic
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.progress import Progress, Track

_BATCH_ROWS = 256
_BATCH_CHARACTERS = 4_000_000
# By the reason for which most rows of a source are rejected.
REMEDIES = {
    "missing column": "set prompt_field or messages_field of {source} to the column's name",
    "not an object": "set {source}.format to what the file is",
    "broken JSON": "set {source}.format to what the file is, or write it anew as JSON lines",
    "broken CSV": "quote cells that hold the delimiter, quotes or line breaks, as csv writers do",
    "invalid unicode": "convert the file to UTF-8 (iconv -f LATIN1 -t UTF-8)",
    "bad messages": "set messages_field of {source} to the column of the chats",
    "chat template failed": "correct the template of the target's tokenizer, or set corpus.chat_template false for plain prompts",
    NO_CHOICE: "set {source}.tools_if_none to what the server does",
    SPELLED: "write the column as JSON (json.dumps in Python)",
    ENCODED: "decode the column: it must hold what was sent and answered",
    TRANSCRIPT: "write the chats as messages, or set corpus.chat_template false if the target gets these texts as they are",
    UNKNOWN_ROLE: "map the role, such as roles: {{developer: system}} of {source}",
    WITHOUT_TRACE: "the target's template drops such messages, as it does in a server: leave these rows out",
    "token that the models do not share": "take models with an embedding for this token, or leave out the prompts with it",
    "not text": "set prompt_field of {source} to a column of texts",
}
_SHOWN = 8  # fields in a warning
_NAMED = 3  # rejected rows of a source that are named in warnings


def remedy_for(reason: str) -> str | None:
    """What to do about rows that are rejected for `reason`, with `{source}` for the key of their source."""
    return REMEDIES.get(WITHOUT_TRACE if reason.endswith(WITHOUT_TRACE) else reason)


@dataclass
class RowCounts:
    """Counts of rows: rows = accepted + rejected + too_long + too_short. `rejected` rows are malformed. With `every_answer` a row
    counts once for each of its answers."""

    rows: int = 0
    accepted: int = 0
    rejected: int = 0
    too_long: int = 0
    too_short: int = 0
    dropped_turns: int = 0
    dropped_answers: int = 0
    older: int = 0  # than the window of the source; not in `rows`
    not_sampled: int = 0  # not in `rows`
    over_limit: int = 0  # not in `rows`
    answers: int = 0  # recorded ones that are used
    reasons: Counter[str] = field(default_factory=Counter)
    redacted: Counter[str] = field(default_factory=Counter)
    unused_answers: Counter[str] = field(default_factory=Counter)  # by reason

    def add(self, other: "RowCounts") -> None:
        for field_ in fields(self):
            mine, theirs = getattr(self, field_.name), getattr(other, field_.name)
            setattr(self, field_.name, mine + theirs)


class Rendering(Protocol):
    """Prompts to token ids, as `Renderer` does it."""

    @property
    def names(self) -> TemplateNames | None: ...

    def check_arguments(self, arguments: Mapping[str, Any], key: str) -> None: ...

    def text(self, prompt: ParsedPrompt) -> tuple[str, bool]: ...

    def token_ids(self, texts: Sequence[tuple[str, bool]]) -> list[list[int]]: ...

    def check_ids(self, ids: Sequence[int], facts: RowFacts) -> None: ...

    def bare_ids(self, texts: Sequence[str]) -> list[list[int]]: ...

    def answer_ids(self, prompt: ParsedPrompt, ids: Sequence[int], answer: LoggedAnswer) -> StoredAnswer: ...


def read_sources(
    config: CorpusConfig,
    paths: Sequence[Path | None],
    renderer: Rendering,
    buffer: Rows,
    rejects: Path,
    progress: Progress,
    today: date | None = None,
    is_sample: bool = False,
) -> RowCounts:
    """Read the rows of every source, render and tokenise them, and add the usable prompts to `buffer`.

    `paths` are the files of `config.sources`, in their order; None: the source is not read. Rows that are malformed, too long or
    too short are written to the file `rejects`, one JSON object per line. `today`: the day on which the run began, for sources
    with a window. Returns the counts of all sources together. UsageError for a source that is empty, has a larger share of
    malformed rows than `config.max_rejected_share`, or contains no prompt, and where no source has rows since `config.since`.
    `is_sample`: rows that `limit` leaves out may have the prompts and the domain that the rows before them lack.
    """
    readers = [
        (number, source, SourceReader(number, source, path, since=config.since_seconds))
        for number, (source, path) in enumerate(zip(config.sources, paths, strict=True))
        if path is not None
    ]
    check_log(config, (reader for _, source, reader in readers if not source.is_reference))
    counts, of_logs = RowCounts(), list[tuple[SourceReader, int, float | None]]()
    with (
        rejects.open("w", encoding="utf-8") as stream,
        progress.track("corpus", sum(reader.total() for _, _, reader in readers), "rows") as track,
    ):
        for number, source, reader in readers:
            renderer.check_arguments(source.chat_template_arguments, f"corpus.sources.{number}.chat_template_arguments")
            if not source.is_reference:  # what the config does not name is recognised, and is printed
                progress.line(reader.line)
            traffic = Traffic(reader, reader.source, today or datetime.now(UTC).date(), reader.since)
            source_pass = _SourcePass(number, reader, traffic, config, renderer, buffer, stream)
            source_pass.run(track)
            if not (is_sample and source_pass.counts.over_limit):
                source_pass.check()
            source_pass.warn(progress)
            counts.add(source_pass.counts)
            if reader.since is not None:
                of_logs.append((reader, source_pass.counts.rows, traffic.newest))
    check_rows(config, of_logs)
    return counts


class _SourcePass:
    """The first pass over one source."""

    def __init__(
        self,
        number: int,
        reader: SourceReader,
        traffic: Traffic,
        config: CorpusConfig,
        renderer: Rendering,
        buffer: Rows,
        rejects: TextIO,
    ) -> None:
        self.number, self.reader, self.source, self.config = number, reader, reader.source, config
        self.traffic = traffic
        self.renderer, self.buffer, self.rejects = renderer, buffer, rejects
        self.counts = RowCounts()
        self.first_rejects: list[str] = []
        self._rejected: list[tuple[SourceRow, str]] = []  # of this batch; written in file order

    def run(self, track: Track) -> None:
        for batch in self._batches(track):
            self._add_batch(batch)
        self.counts.older, self.counts.not_sampled = self.traffic.older, self.traffic.not_sampled
        self.counts.over_limit = self.reader.over_limit
        self.counts.redacted = self.traffic.redacted

    def check(self) -> None:
        """Raise UsageError unless enough of the source was usable. Checked for each source, so that a malformed small file is
        noticed beside a large one."""
        counts, path = self.counts, self.reader.path
        if not counts.rows:
            if self.reader.since is not None and counts.older:
                return  # another log may have rows since the change
            if counts.older:
                raise UsageError(
                    f"{path}: no prompts: all {counts.older:,} rows are older than corpus.sources.{self.number}.since = "
                    f"{self.source.since}; widen the window"
                )
            raise UsageError(
                f"{path}: no prompts: the file is empty; add prompts, or name another in corpus.sources.{self.number}.path"
            )
        share = counts.rejected / counts.rows
        if share > self.config.max_rejected_share:
            raise UsageError(
                f"{path}: {self.first_rejects[0]}; {counts.rejected:,} of {counts.rows:,} rows rejected ({share:.1%}), "
                f"more than corpus.max_rejected_share = {self.config.max_rejected_share:g}{self._remedy()}"
            )
        if missing := self.reader.missing.get("domain_field"):
            raise UsageError(f"{path}: corpus.sources.{self.number}.domain_field: {missing}")
        if not counts.accepted:
            lengths = (
                f"{counts.too_long:,} longer than corpus.max_prompt_tokens = {self.config.prompt_limit}, "
                f"{counts.too_short:,} shorter than corpus.min_prompt_tokens = {self.config.min_prompt_tokens}"
            )
            rejected = f", {counts.rejected:,} rejected, the first: {self.first_rejects[0]}" if counts.rejected else ""
            raise UsageError(
                f"{path}: no prompt was accepted of {counts.rows:,}: {lengths}{rejected}; change these limits, or the prompts"
            )

    def _remedy(self) -> str:
        """What to do about the reason that most malformed rows have."""
        (reason, _), *_ = self.counts.reasons.most_common(1)
        known = remedy_for(reason)
        return (
            f"; {known.format(source=f'corpus.sources.{self.number}')}"
            if known
            else "; fix the rows, or raise that share"
        )

    def warn(self, progress: Progress) -> None:
        """Name the first malformed rows, which are not used, and a log that nobody has written since the change."""
        if not self.counts.rows:
            progress.warn(f"{self.reader.path}: no row is of corpus.since = {self.config.since} or later")
        for key, missing in self.reader.missing.items():
            progress.warn(f"{self.reader.path}: corpus.sources.{self.number}.{key}: {missing}")
        if unknown := self.reader.unknown:
            names = ", ".join(f"{printable(name[:40])} ({count:,})" for name, count in unknown.most_common(_SHOWN))
            others = ", ..." if len(unknown) > _SHOWN else ""
            progress.warn(
                f"{self.reader.path}: unknown fields of requests, by rows: {names}{others}; if one changes "
                "the prompt, these rows are not rendered as the server did"
            )
        for reject in self.first_rejects:
            progress.warn(f"{self.reader.path}: {reject}; the row is not used")
        if (more := self.counts.rejected - len(self.first_rejects)) > 0:
            progress.warn(
                f"{self.reader.path}: {more:,} more rows are not used; rejects.jsonl of the corpus names them"
            )

    def _batches(self, track: Track) -> Iterator[list[tuple[SourceRow, ParsedPrompt, tuple[str, bool]]]]:
        batch: list[tuple[SourceRow, ParsedPrompt, tuple[str, bool]]] = []
        characters = 0
        for row in self._rows(track):
            self.counts.rows += 1
            try:
                prompt = parse_row(row.value, self.source, self.renderer.names)
                facts = replace(prompt.facts, time=self.traffic.time_of(row))
                prompt = replace(prompt, of_log=self.reader.is_log, facts=facts)
                text = self._text(prompt, row)
            except BadRow as bad:
                self._reject(row, bad)
                continue
            batch.append((row, prompt, text))
            characters += len(text[0])
            if len(batch) + len(self._rejected) >= _BATCH_ROWS or characters >= _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
        yield batch

    def _rows(self, track: Track) -> Iterator[SourceRow]:
        """A row for each prompt: with `every_answer`, one for each recorded answer of a row."""
        for row in self.traffic:
            track.advance(1)
            yield from (replace(row, value=value) for value in rows_by_answer(row.value, self.source))

    def _text(self, prompt: ParsedPrompt, row: SourceRow) -> tuple[str, bool]:
        try:
            return self.renderer.text(prompt)
        except UsageError as error:
            raise UsageError(f"{self.reader.path}: {self._place(row)}: {error}") from None

    def _add_batch(self, batch: list[tuple[SourceRow, ParsedPrompt, tuple[str, bool]]]) -> None:
        """Tokenise a batch and add it to the buffer; prompts that are too long or too short are rejected."""
        tokens = self.renderer.token_ids([text for _, _, text in batch])
        least, most = self.config.min_prompt_tokens, self.config.prompt_limit
        prompts, kept, answers = [], [], []
        for (row, prompt, _), ids in zip(batch, tokens, strict=True):
            try:
                self.renderer.check_ids(ids, prompt.facts)
            except BadRow as bad:
                self._reject(row, bad)
                continue
            if len(ids) > most:
                self.counts.too_long += 1
                self._rejected.append((row, f"too long: {len(ids):,} tokens, at most {most:,}"))
            elif len(ids) < least:
                self.counts.too_short += 1
                self._rejected.append((row, f"too short: {len(ids):,} tokens, at least {least:,}"))
            else:
                prompts.append(prompt)
                kept.append(ids)
                answers.append(self._answer(row, prompt, ids))
                self.counts.dropped_turns += prompt.dropped_turns
                self.counts.dropped_answers += prompt.dropped_answers
        bare = self.renderer.bare_ids([prompt.comparison_text for prompt in prompts])
        accepted = zip(prompts, kept, bare, answers, strict=True)
        self.buffer.add([AcceptedRow(self.number, *row) for row in accepted])
        self.counts.accepted += len(kept)
        self._write_rejects()

    def _answer(self, row: SourceRow, prompt: ParsedPrompt, ids: list[int]) -> StoredAnswer | None:
        """The recorded answer; None where the target has to answer again, which is counted by its reason."""
        if not self.source.use_answers:
            return None
        try:
            if row.redacted:  # the target has seen another prompt, or has given another answer
                raise UnusableAnswer("redacted")
            answer = self.renderer.answer_ids(prompt, ids, parse_answer(row.value, self.source))
        except UnusableAnswer as reason:
            self.counts.unused_answers[str(reason)] += 1
            return None
        self.counts.answers += 1
        return answer

    def _reject(self, row: SourceRow, bad: BadRow) -> None:
        self.counts.rejected += 1
        self.counts.reasons[bad.kind] += 1
        if len(self.first_rejects) < _NAMED:
            self.first_rejects.append(f"{self._place(row)}: {bad}")
        self._rejected.append((row, str(bad)))

    def _place(self, row: SourceRow) -> str:
        place = f"{self.reader.unit} {row.number}"
        return place if row.file == self.reader.path.name else f"{row.file} {place}"

    def _write_rejects(self) -> None:
        for row, reason in sorted(self._rejected, key=lambda reject: (reject[0].file, reject[0].number)):
            entry = {"source": self.number, "file": row.file, "row": row.number, "reason": reason}
            self.rejects.write(json.dumps(entry, sort_keys=True, ensure_ascii=False) + "\n")
        self._rejected.clear()

"""What a file of prompts shows of the deployment whose log it is: recorded answers, times, and how prompts are rendered."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import UnusableAnswer
from pipeline.corpus.answers import (
    ANSWER_COLUMNS,
    NO_REASON,
    LoggedAnswer,
    parse_answer,
    settings_text,
    stated_sampling,
)
from pipeline.corpus.rendering import Renderer, Tokenizer
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.corpus.traffic import timestamp
from pipeline.speculation.deployed import of_log

_ANSWERS = ("answer", "response", "completion", "output")
_SHOWN = 4  # settings in a comment
_EXAMPLES = 64  # plain prompts with an answer, by which the rendering is recognised
_TIMES = ("created", "created_at", "timestamp", "time", "date")
READ = (*_ANSWERS, *_TIMES, *ANSWER_COLUMNS)  # of formats of which only named columns are read


@dataclass
class LogColumns:
    """Rows with a recorded answer and with a time, by column. The column "" stands for the last of a row's messages."""

    messages_field: str = "messages"
    answers: Counter[str] = field(default_factory=Counter)
    without_reason: Counter[str] = field(default_factory=Counter)  # of `answers`: those without what ended them
    times: Counter[str] = field(default_factory=Counter)
    stated: Counter[tuple[tuple[str, float], ...]] = field(default_factory=Counter)  # rows by their sampling settings
    _examples: list[tuple[ParsedPrompt, LoggedAnswer]] = field(default_factory=list)

    def add(self, row: Mapping[str, Any], prompt: ParsedPrompt) -> None:
        """Count one row, whose prompt is `prompt`."""
        answers = {column: answer for column in (*_ANSWERS, "") if (answer := self._answer(row, column)) is not None}
        self.answers.update(answers.keys())
        self.without_reason.update(column for column in answers if not self._says_its_end(row, column))
        if prompt.plain and len(self._examples) < _EXAMPLES:
            self._examples += [(prompt, answer) for answer in list(answers.values())[:1]]
        with contextlib.suppress(UnusableAnswer):  # values that cannot be
            self.stated[tuple(stated_sampling(row).items())] += 1
        self.times.update(column for column in _TIMES if timestamp(row.get(column)) is not None)

    def _answer(self, row: Mapping[str, Any], column: str) -> LoggedAnswer | None:
        if column and row.get(column) is None:
            return None
        try:
            return parse_answer(row, self._source(column, "stop"))
        except UnusableAnswer:
            return None

    def _source(self, column: str, finish_reason: Literal["stop"] | None) -> PromptSource:
        return PromptSource(
            path="log", answer_field=column, messages_field=self.messages_field, finish_reason=finish_reason
        )

    def _says_its_end(self, row: Mapping[str, Any], column: str) -> bool:
        try:
            parse_answer(row, self._source(column, None))
        except UnusableAnswer as why:
            return str(why) != NO_REASON
        return True

    @property
    def sampling(self) -> dict[str, float]:
        """The settings that most rows with settings state; empty where none does."""
        return {name: value for known in of_log(self.stated) for name, value in known.settings.items()}

    def sampling_lines(self) -> Iterator[str]:
        """Comments on where `sampling` comes from, and on rows that disagree."""
        rows = self.stated[tuple(self.sampling.items())]
        yield f"# {rows:,} rows of the log state {settings_text(self.sampling)}."
        others = Counter({settings: count for settings, count in self.stated.items() if settings})
        del others[tuple(self.sampling.items())]
        if others:
            shown = "; ".join(
                f"{settings_text(dict(settings))} ({count:,})" for settings, count in others.most_common(_SHOWN)
            )
            more = "; ..." if len(others) > _SHOWN else ""
            yield f"# {others.total():,} rows state other settings: {shown}{more}. Their recorded answers are not used."

    def has_template(self, tokenizer: Tokenizer) -> bool | None:
        """Whether the deployment applies the chat template of the target's `tokenizer` to prompts that are plain text; None where
        the log does not have."""
        by_ids = [(prompt, answer.prompt_tokens) for prompt, answer in self._examples if answer.prompt_tokens]
        for wanted in (True, False) if tokenizer.chat_template else (False,):
            renderer = Renderer(tokenizer, wanted, {})
            if 2 * sum(_token_ids(renderer, prompt) == given for prompt, given in by_ids) > len(by_ids):
                return wanted
        return False if any(answer.completes for _, answer in self._examples) else None

    def lines(self) -> Iterator[str]:
        """The keys of a source that use them, as comments or off, because they change what is examined."""
        if self.times:
            column, rows = self.times.most_common(1)[0]
            named = "" if column == PromptSource.model_fields["time_field"].default else f", by time_field: {column}"
            yield f"      # since: 14d  # only rows of the last 14 days{named}; {rows:,} rows have a time"
        if self.answers:
            column, rows = self.answers.most_common(1)[0]
            yield f"      use_answers: false  # {rows:,} rows have a recorded answer; true: the target only scores it"
            if column:
                yield f"      answer_field: {column}"
            if unknown := self.without_reason[column]:
                why = f"{unknown:,} of them do not state what ended them and are not used; stop: none was cut"
                yield f"      finish_reason: null  # {why}"
        if self.times or self.answers:
            yield "      redact: false  # true: replace keys, e-mail addresses and long numbers before anything is stored"


def _token_ids(renderer: Renderer, prompt: ParsedPrompt) -> tuple[int, ...] | None:
    try:
        (tokens,) = renderer.token_ids([renderer.text(prompt)])
    except BadRow:  # the template refuses it
        return None
    return tuple(tokens)

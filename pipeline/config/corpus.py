"""The workload: prompt sources, de-duplication, splits, limits."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.pair import REFERENCE
from pipeline.store.files import canonical_json
from pipeline.store.json_text import parse_json
from pipeline.store.own_files import reads_own_files

DOMAIN_FIELD = "domain"
SourceFormat = Literal["auto", "jsonl", "json", "csv", "tsv", "text", "parquet", "dataset"]
TEMPLATE_ARGUMENTS_OF_OURS = (
    *("conversation", "messages", "tokenize", "add_generation_prompt", "return_dict", "return_tensors"),
)
"""Arguments of a chat template that no config and no row may set."""
HUB_DATA = re.compile(r"(?P<source>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<pattern>[^:]+))?")
"""The name of a data set of the hub: `org/name[@revision][:PATTERN]`."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_LABEL = 200  # characters of a domain or group; longer values are probably the wrong column


def label_mistake(text: str) -> str | None:
    """Why `text` cannot name a domain or a group; None if it can. It becomes a metric, a row of tables, a choice on the page."""
    if len(text) > MAX_LABEL or "\0" in text:
        return f"{len(text):,} characters, at most {MAX_LABEL}, without NUL"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a lone surrogate at character {error.start + 1}, which no text has"
    return None


class PromptSource(Section):
    """One source of prompts."""

    path: str = Field(
        min_length=1,
        description="A file of prompts, a directory of such files, a glob such as `logs/*.jsonl.gz`, or a `datasets` directory, "
        "relative to the config file; files of a data set of the hub, `org/name@COMMIT:PATTERN` with the commit's 40 hex digits; "
        "or `reference`, the prompts that come with the reference pair.",
    )
    format: SourceFormat = Field(
        default="auto",
        description="File format; `auto` uses the file names: .jsonl, .ndjson, .json, .csv, .tsv, .txt (a prompt a line), "
        ".parquet, and all but the last also with .gz, .bz2, .xz or .zst.",
    )
    domain: str | None = Field(default=None, description="The domain of every row; null reads `domain_field`.")
    domain_field: str = Field(default=DOMAIN_FIELD, description="The column that holds a row's domain.")
    prompt_field: str = Field(
        default="prompt",
        description="The column of a prompt: a text, or a chat. If neither this nor `messages_field` or `turns_field` is set, "
        "ShareGPT, Alpaca and common names such as `question` are recognised too (docs/prompts.md).",
    )
    input_field: str | None = Field(
        default=None,
        description="Alpaca: the column of the input of an instruction, which follows `prompt_field` after an empty line.",
    )
    system_field: str | None = Field(
        default=None, description="The column of a system message, which is put before the prompt or chat."
    )
    messages_field: str = Field(
        default="messages",
        description="The column of a chat: a list of {role, content}, or of {from, value} (ShareGPT), or its JSON text.",
    )
    roles: dict[str, str] = Field(
        default={},
        description="Roles (or `from`) of messages that are read as other ones, such as {developer: system}; {critic: critic} "
        "keeps a role that the chat template writes without naming it.",
    )
    turns_field: str = Field(default="turns", description="The column of Spec-Bench turns: a list of user texts.")
    group_field: str = Field(
        default="group", description="The column whose equal values must fall into one split (a conversation, a file)."
    )
    tools_field: str | None = Field(
        default="tools",
        description="The column of a row's tools: a list of function schemas, or its JSON text; the chat template gets them. "
        "null reads no tools.",
    )
    tools_if_none: bool | None = Field(
        default=None,
        description="Whether the prompt of a request with `tool_choice: none` has its tools: true as in vLLM, false as in SGLang "
        "(and vLLM's --exclude-tools-when-tool-choice-none). null: such rows are rejected.",
    )
    request_field: str | None = Field(
        default="request",
        description="The column of a log's requests, where they are not in the row itself: an object, or its JSON text. Of it "
        "only fields of requests are read, so a client's own `domain` labels nothing. null: rows hold their requests.",
    )
    use_answers: bool = Field(
        default=False,
        description="For a log of the deployment: the recorded answers are completions of the target, which then only scores "
        "them. They are read from `answer_field`, else from the last of `messages`.",
    )
    answer_field: str = Field(
        default="answer",
        description="With `use_answers`: the column of the answer: a text, a message, or the answer of an API (docs/logs.md), "
        "also as JSON text.",
    )
    finish_reason: Literal["stop"] | None = Field(
        default=None,
        description="What ended the recorded answers whose rows do not state it. null: unknown, and they are not used. "
        "`stop`: they ended by themselves, and none was cut at a limit.",
    )
    every_turn: bool = Field(
        default=False,
        description="Multi-turn: the target answers every user message of a chat, up to the first tool call; its own answers "
        "replace the recorded ones. If false, it answers one message per chat: the last of `messages`, after the "
        "recorded answers, or the first of `turns`.",
    )
    every_answer: bool = Field(
        default=False,
        description="Sessions of agents: each recorded answer of a chat is a completion of its own, to the messages before it, "
        "tool results included. With `use_answers` it is the recorded answer, otherwise the target's answer at this place.",
    )
    chat_template_arguments: dict[str, Any] = Field(
        default={},
        description="Arguments of the chat template for this source, over those of `corpus`. Domains of its prompts are named "
        "by them, such as `chat (enable_thinking=false)`, so figures and rules are by mode.",
    )
    arguments_field: str | None = Field(
        default="chat_template_kwargs",
        description="The column of a row's own arguments of the chat template, as requests to vLLM, SGLang and llama.cpp state "
        "them: an object, or its JSON text. They name the domain too. null ignores the column.",
    )
    limit: int | None = Field(default=None, gt=0, description="Maximum number of rows to read.")
    time_field: str = Field(
        default="created", description="The column of a row's time, for a log: seconds since 1970, or ISO 8601."
    )
    since: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]{0,4}[dh]$",
        description="Use only rows of this period, such as 14d or 48h; it ends when the day of the run begins (UTC). "
        "`corpus.since` names a moment instead.",
    )
    sample: int | None = Field(
        default=None,
        gt=0,
        description="Sample this number of rows, balanced over domains where possible; a hash of the row decides.",
    )
    half_life: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]{0,4}[dh]$",
        description="With `sample`: the weight of a row halves with each such period of age; null: age does not matter.",
    )
    redact: bool = Field(
        default=False,
        description="Replace keys, tokens, passwords, e-mail addresses, IP addresses and long numbers in the row's texts before "
        "anything is stored (docs/logs.md lists the rules).",
    )

    @field_validator("domain")
    @classmethod
    def _names_a_domain(cls, domain: str | None) -> str | None:
        if domain is not None and (mistake := label_mistake(domain)):
            raise ValueError(mistake)
        return domain

    @model_validator(mode="after")
    def _half_life_is_of_a_sample(self) -> "PromptSource":
        if self.half_life is not None and self.sample is None:
            raise ValueError("half_life weighs the rows of a sample: set `sample` too, or remove it")
        return self

    @field_validator("chat_template_arguments")
    @classmethod
    def _arguments_can_be_stored(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _template_arguments(value)

    @model_validator(mode="after")
    def _answers_are_of_one_turn(self) -> "PromptSource":
        if self.use_answers and self.every_turn:
            raise ValueError(
                "use_answers and every_turn exclude each other: later turns follow the target's own answers; every_answer uses "
                "the recorded answer of each turn"
            )
        if self.every_answer and self.every_turn:
            raise ValueError(
                "every_answer and every_turn exclude each other: prompts hold the recorded answers, or the target's own"
            )
        return self

    @property
    def needs_time(self) -> bool:
        return self.since is not None or self.half_life is not None

    @property
    def is_reference(self) -> bool:
        return self.path == REFERENCE

    @property
    def is_hub(self) -> bool:
        """Whether the files are those of a data set of the hub, at a commit: what a run reads must not change."""
        named = HUB_DATA.fullmatch(self.path)
        return named is not None and _COMMIT.fullmatch(named["revision"] or "") is not None


@reads_own_files("its own JSON text, to see whether it comes back")
def _template_arguments(value: dict[str, Any]) -> dict[str, Any]:
    """ValueError for arguments of a chat template that cannot be stored, or that are not the user's."""
    try:
        text = canonical_json(value)
        text.encode()
        same = parse_json(text) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ValueError(
            "it has a value that JSON does not support, such as a date or .nan; use text and plain numbers"
        )
    if taken := sorted(set(value) & set(TEMPLATE_ARGUMENTS_OF_OURS)):
        raise ValueError(f"{taken[0]}: Understudy sets this argument; remove it")
    for name, setting in value.items():
        if isinstance(setting, str) and setting.lower() in ("true", "false"):
            raise ValueError(
                f"{name}: the text '{setting}' is true for a template; write {setting.lower()} without quotes"
            )
    return value


def named_source(path: Path, columns: Mapping[str, str | None]) -> PromptSource:
    """The source that a command's options `--prompts`, `--prompt-field` and so on name. `columns` are keys of a source; None: its
    default."""
    return PromptSource.model_validate(
        {"path": str(path)} | {name: column for name, column in columns.items() if column is not None}
    )


def source_path(path: Path) -> Path:
    """Absolute, without links to folders. A link to a file stays one: files are recognised by their names, and what is linked,
    such as a blob of the hub's cache, may have another."""
    return path.parent.resolve() / path.name


class Splits(Section):
    """Shares of the near-duplicate clusters in each split; they sum to 1."""

    train: float = Field(default=0.6, gt=0, lt=1, description="Share of clusters that the draft is trained on.")
    dev: float = Field(
        default=0.1, gt=0, lt=1, description="Share of clusters on which checkpoints and variants are chosen."
    )
    examination: float = Field(
        default=0.3, gt=0, lt=1, description="Share of clusters on which drafts are examined; never trained on."
    )

    @model_validator(mode="after")
    def _sum_is_one(self) -> "Splits":
        total = self.train + self.dev + self.examination
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train + dev + examination is {total:g}; the shares must sum to 1")
        return self


DEFAULT_PROMPT_TOKENS = 1024


class CorpusConfig(Section):
    """The prompts: sources, cleaning, splits."""

    sources: tuple[PromptSource, ...] = Field(min_length=1, description="Where the prompts come from.")
    since: str | None = Field(
        default=None,
        description="Learn from what changed: of sources with times (`time_field`), only rows from this time on are used, in all "
        "splits. ISO 8601 with a zone, such as 2026-11-24T10:00:00Z. Sources without times are used as always.",
    )
    splits: Splits = Field(default=Splits(), description="Shares of train, dev and examination.")
    near_duplicate_threshold: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Two prompts are near-duplicates from this Jaccard similarity of their 5-gram sets; case, whitespace and "
        "punctuation around a message do not count.",
    )
    min_domain_prompts: int = Field(
        default=200,
        ge=0,
        description="Domains of a log with fewer prompts (conversations) are one domain, `other`, or belong to the largest one "
        "where they are too few together. Logs are sources without `domain` whose rows have a request of its own, or times and "
        "settings of requests or an API's answers, or that use answers or choose rows by time. 0: every domain stays.",
    )
    min_prompt_tokens: int = Field(default=1, ge=1, description="Shorter prompts are rejected.")
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Longer prompts are rejected; null: 1,024, or what generate.max_new_tokens and generate.lookahead leave of "
        "the pair's context if that is less.",
    )
    max_rejected_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="A larger share of invalid rows in a source stops the run; rows that are too long or too short do not count.",
    )
    chat_template: bool | None = Field(
        default=None,
        description="Apply the chat template to plain prompts, as a user message; null: if the tokenizer has a template. "
        "Chats and turns always need a template.",
    )
    chat_template_arguments: dict[str, Any] = Field(
        default={}, description="Extra arguments of the chat template, such as {enable_thinking: false}."
    )

    @field_validator("chat_template_arguments")
    @classmethod
    def _can_be_stored(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _template_arguments(value)

    @field_validator("since")
    @classmethod
    def _is_a_moment(cls, since: str | None) -> str | None:
        """The time in UTC, so that one moment has one key."""
        if since is None:
            return None
        try:
            time = datetime.fromisoformat(since)
            if time.tzinfo is None:
                raise ValueError
            return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
        except (ValueError, OverflowError):
            raise ValueError(f"{since[:40]!r} is not a time with a zone; write it like 2026-11-24T10:00:00Z") from None

    @model_validator(mode="after")
    def _since_is_of_a_log(self) -> "CorpusConfig":
        if self.since is not None and all(source.is_reference for source in self.sources):
            raise ValueError(
                "since needs a log, a source whose rows have times; the prompts of the reference pair have none"
            )
        return self

    @property
    def since_seconds(self) -> float | None:
        """`since` in seconds since 1970."""
        return None if self.since is None else datetime.fromisoformat(self.since).timestamp()

    @property
    def prompt_limit(self) -> int:
        """The longest prompt; a run sets `max_prompt_tokens` to what the pair's context allows before it reads prompts."""
        return DEFAULT_PROMPT_TOKENS if self.max_prompt_tokens is None else self.max_prompt_tokens

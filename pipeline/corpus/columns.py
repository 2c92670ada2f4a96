"""Which columns of a source hold its prompts: those of the config, else one of a few forms that public files have. Pure.

What is recognised is printed. Where two columns may hold the prompts, the user chooses. A column that the config names is read.
"""

import contextlib
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.advice import program_for
from pipeline.corpus.answer_forms import UnusableAnswer, read_answer
from pipeline.corpus.answers import ANSWER_COLUMNS
from pipeline.corpus.as_served import role_of
from pipeline.corpus.chats import as_list, chat_form, is_spelled_texts, is_texts
from pipeline.corpus.json_values import decoded
from pipeline.corpus.nested_settings import holders_of
from pipeline.corpus.other_requests import MEDIA, ROUTES
from pipeline.corpus.request_counts import COUNT_COLUMNS, RESPONSE, request_counts
from pipeline.corpus.request_fields import LIMITS, OF_ROWS, SETTINGS, STATED
from pipeline.corpus.rows import BadRow, parse_row, prompt_columns
from pipeline.corpus.sources import jq_command
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

SAMPLE = 64  # rows at the beginning of a source, by which its columns are recognised
_CHOICES = ("prompt_field", "input_field", "messages_field", "turns_field")
_CHATS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
_TEXTS = (
    *("prompt", "question", "query", "instruction", "problem", "request", "user_prompt", "user_input"),
    *("input", "inputs", "text", "content"),
)
_SYSTEMS = ("system", "system_prompt", "system_message", "system_instruction", "instructions")
_INPUTS = ("context", "input", "passage", "document", "background")
_SENDER_COLUMNS = ("role", "from", "sender", "speaker", "author", "type")
_FEW = 3  # rows that may ask the same
_OF_ROW = re.compile(r"(?:^|_)(?:id|uuid|hash|object|model|created|error)$", re.IGNORECASE)  # columns about a row
_OF_REQUESTS = (*STATED, *LIMITS, *OF_ROWS, "stream", RESPONSE)
_SHOWN = 12  # columns in a message


@dataclass(frozen=True)
class SourceColumns:
    """The columns of a source's prompts."""

    source: PromptSource  # with the names of the columns that are read
    layout: str  # what was recognised, for people
    unused: tuple[str, ...]  # other columns
    read: tuple[str, ...] = ()  # whatever may be read of a row, those of prompts first
    foreign_answers: str | None = None  # the answers of other models or people that the rows hold, which nobody uses
    of_text: bool = False  # the prompts are texts and no chats
    has_times: bool = False  # rows have the column of the time, or have to
    has_counts: bool = False  # of speculation, by request
    has_requests: bool = False  # rows state settings of requests, or have the answer of an API
    lists_as_text: bool = False  # prompts that are the JSON text of a list of texts were written for one


@dataclass(frozen=True)
class Where:
    """Names for messages."""

    file: str
    unit: str  # of `number`: line or row
    number: int  # of the first row
    remedy: str  # which keys or options name columns
    has_header: bool  # names are the first line of a file
    is_json: bool  # a text of JSON, perhaps compressed
    tries: bool = True  # whether what the message advises is tried; not within a try


def find_columns(rows: Sequence[Mapping[str, Any]], source: PromptSource, where: Where) -> SourceColumns:
    """The columns of `rows`, the first of a source. UsageError where none, or more than one, can hold the prompts."""
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    configured = [name for name in prompt_columns(source) if name in names]
    if not configured and names:
        if any(getattr(source, key) != PromptSource.model_fields[key].default for key in _CHOICES):
            raise _not_there(names, source, where)
        source, layout, foreign = _recognised(rows, names, source, where)
    else:
        layout, foreign = _configured(rows, configured, source), None
    _check_whole_chats(rows, source, where)
    has_counts = any(request_counts(row, source.answer_field) is not None for row in rows)
    used = (*_used(source, has_counts), *holders_of(rows, SETTINGS))
    unused, read = tuple(name for name in names if name not in used), (*used, *ROUTES, *MEDIA)
    of_text = (
        source.prompt_field in names
        and _is_text(rows, source.prompt_field)
        and _form(rows, source.prompt_field) is None
    )
    has_times = source.needs_time or source.time_field in names
    has_requests = has_counts or not set(_OF_REQUESTS).isdisjoint(names)
    has_requests = has_requests or any(isinstance(decoded(row.get(source.answer_field)), Mapping) for row in rows)
    lists = where.has_header or mostly_lists([row.get(source.prompt_field) for row in rows])
    return SourceColumns(
        source, layout, unused, read, foreign, of_text, has_times, has_counts, has_requests, lists_as_text=lists
    )


def mostly_lists(values: Sequence[Any]) -> bool:
    """Whether most texts of a column are the JSON text of a list of texts. A single one may be a prompt."""
    texts = [value for value in values if isinstance(value, str)]
    return 2 * sum(map(is_spelled_texts, texts)) > len(texts)


def _used(source: PromptSource, has_counts: bool) -> tuple[str, ...]:
    """One list for all formats: of Parquet files nothing else is read."""
    further = [source.input_field, source.system_field, source.domain_field, source.group_field, source.tools_field]
    further += [source.arguments_field, source.time_field, *OF_ROWS, *STATED]
    further += [source.answer_field, *ANSWER_COLUMNS] if source.use_answers else []
    further += [source.answer_field, *COUNT_COLUMNS] if has_counts else []
    return tuple(dict.fromkeys([*prompt_columns(source), *(name for name in further if name)]))


def system_column(columns: SourceColumns) -> str | None:
    """An unused column that seems to hold system messages."""
    return next((name for name in columns.unused if name.lower() in _SYSTEMS), None)


def input_column(columns: SourceColumns) -> str | None:
    """An unused column that seems to belong to the prompt, such as the text that a question is about. None beside chats."""
    if not columns.of_text or columns.source.input_field is not None:
        return None
    return next((name for name in columns.unused if name.lower() in _INPUTS), None)


def hint(columns: SourceColumns) -> str:
    """A hint for people: which keys use an unused column that seems to belong to the prompts; empty for none."""
    system, further = system_column(columns), input_column(columns)
    hints = [f"system_field: {printable(system)} puts it before each prompt"] if system else []
    hints += [f"input_field: {printable(further)} puts it after each prompt"] if further else []
    return "; ".join(hints)


def _check_whole_chats(rows: Sequence[Mapping[str, Any]], source: PromptSource, where: Where) -> None:
    """UsageError for rows that are one message each, answers among them: they would be asked as prompts."""
    texts = [row for row in rows if isinstance(row.get(source.prompt_field), str)]
    for name in _SENDER_COLUMNS:
        senders = [row[name] for row in texts if row.get(name) is not None]
        said_by = {role_of(sender, source.roles) if isinstance(sender, str) else None for sender in senders}
        if {"user", "assistant"} <= said_by and None not in said_by:
            raise UsageError(
                f"{where.file}: {where.unit} {where.number}: each row is one message (by its column `{name}`), and answers are "
                "no prompts; write the messages of each conversation as one row with `messages`"
            )


_Recognised = tuple[PromptSource, str, str | None]  # with its columns, the layout, and answers of others


def _with(source: PromptSource, layout: str, foreign: str | None = None, **fields: str) -> _Recognised:
    return source.model_copy(update=fields), layout, foreign


def _recognised(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], source: PromptSource, where: Where
) -> _Recognised:
    by_name = {name.strip().lower(): name for name in reversed(names)}
    chats = {name: form for name in names if (form := _form(rows, name)) is not None}
    known = [by_name[name] for name in _CHATS if by_name.get(name) in chats]
    if known or chats:
        chosen = _only(known[:1] or list(chats), names, where)
        form = chats[chosen]
        if form == "from/value":
            return _with(
                source, f"ShareGPT: `{chosen}` with from/value", f"the answers in `{chosen}`", messages_field=chosen
            )
        if chosen.strip().lower() in _TEXTS or _has_other(rows, chosen):  # a list here and a text there
            return _with(source, f"chats: `{chosen}` with role/content, or texts", prompt_field=chosen)
        return _with(source, f"chats: `{chosen}` with role/content", messages_field=chosen)
    texts = [by_name[name] for name in _TEXTS if name in by_name and _is_text(rows, by_name[name])]
    if "instruction" in by_name and by_name["instruction"] in texts and ("output" in by_name or "input" in by_name):
        return _alpaca(source, by_name)
    if not texts and len(names) == 1 and not where.has_header and isinstance(_first(rows, names[0]), str):
        return _with(source, f"`{names[0]}`, the only column", prompt_field=names[0])
    chosen = _only(texts, names, where, "" if texts else _what_to_do(rows, source, where))
    return _with(source, f"`{chosen}`", prompt_field=chosen)


def _alpaca(source: PromptSource, by_name: Mapping[str, str]) -> _Recognised:
    fields = {"prompt_field": by_name["instruction"]}
    if "input" in by_name:
        fields["input_field"] = by_name["input"]
    read = " and ".join(f"`{name}`" for name in fields.values())
    return _with(source, f"Alpaca: {read}", f"`{by_name['output']}`" if "output" in by_name else None, **fields)


def _what_to_do(rows: Sequence[Mapping[str, Any]], source: PromptSource, where: Where) -> str:
    """About rows without a column that is known to hold prompts: what was tried on them and works."""
    if not where.tries:
        return where.remedy
    program = program_for(rows, lambda inner: holds_prompts(inner, source, where))
    if program is None and len(rows) == 1:  # of many rows, lists of texts are labels
        program = program_for(rows, lambda inner: len(inner) > 1 and all(isinstance(item, str) for item in inner))
        program = None if program is not None and program.count("[]") > 1 else program  # the cells of a table
    if program is not None and where.is_json:
        return f"take out the rows, for example with {jq_command(where.file, printable(program)[:80])}"
    if program is not None:
        name = next(str(name) for name in rows[0] if program.startswith((f".{name}", f".[{json.dumps(name)}]")))
        return f"write what is in `{printable(name)[:40]}` as the rows of another file"
    for name, value in rows[0].items():
        with contextlib.suppress(UnusableAnswer):
            if isinstance(value, Mapping) and read_answer(value).said is not None:
                return (
                    f"`{printable(name)[:40]}` holds answers, and no column the requests that they answer: join them with the "
                    "file of the requests, such as by custom_id"
                )
    if (messages := _other_messages(rows)) is not None:
        name, keys = messages
        return (
            f"`{printable(name)[:60]}` holds messages of another form ({printable(', '.join(keys))[:80]}); write each as "
            "{role, content}, with a text as content"
        )
    if any(_can_be_named(rows, str(name), source) for name in rows[0]):
        return where.remedy
    return "write the prompts as rows with `prompt` (a text) or `messages` (a chat)"


def holds_prompts(rows: Sequence[Any], source: PromptSource, where: Where) -> bool:
    """Whether `rows` would be read as a source of prompts: chats, or objects whose columns are recognised; most of them have one,
    and not all the same; none is a server's answer."""
    if not rows or not all(isinstance(row, list if isinstance(rows[0], list) else Mapping) for row in rows):
        return False
    rows = [{source.messages_field: row} if isinstance(row, list) else row for row in rows]
    if any(_is_answer(row) for row in rows):
        return False
    try:
        columns = find_columns(rows, source, replace(where, tries=False))
    except UsageError:
        return False
    asked = [prompt for row in rows if (prompt := _prompt_of(row, columns.source)) is not None]
    return 2 * len(asked) > len(rows) and (len(set(asked)) > 1 or len(rows) <= _FEW)


def _is_answer(row: Mapping[str, Any]) -> bool:
    """Whether a row states how a server ended it."""
    try:
        return read_answer(row).reason is not None
    except UnusableAnswer:
        return False


def _prompt_of(row: Mapping[str, Any], source: PromptSource) -> str | None:
    """The text id of a row's prompt; None for a row without one."""
    try:
        return parse_row(row, source).text_id
    except BadRow:
        return None


def _other_messages(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]] | None:
    """The places where `rows` hold messages that are not read, at the top or further within, and their keys; None where they hold
    none."""
    for name, value in rows[0].items():
        if keys := _keys_of_messages(value):
            return name, keys
    keys_within = list[str]()

    def are_messages(inner: Sequence[Any]) -> bool:
        keys_within[:] = _keys_of_messages(inner[0]) if inner else []
        return bool(keys_within)

    program = program_for(rows, are_messages)
    return None if program is None else (program.removeprefix("."), keys_within)


def _keys_of_messages(value: Any) -> list[str]:
    """The keys of messages in a list that names their senders; empty for another value."""
    value = as_list(value)
    if not isinstance(value, list) or not value or not isinstance(value[0], Mapping):
        return []
    return list(map(str, value[0])) if any(isinstance(value[0].get(name), str) for name in _SENDER_COLUMNS) else []


def _can_be_named(rows: Sequence[Mapping[str, Any]], name: str, source: PromptSource) -> bool:
    """Whether the column holds prompts if the user names it; names of rows are none."""
    if _OF_ROW.search(name):
        return False
    named = source.model_copy(update={"prompt_field": name})
    return any(_prompt_of(row, named) is not None for row in rows)


def _only(candidates: Sequence[str], names: Sequence[str], where: Where, inner: str = "") -> str:
    """The one column that was found. `inner`: what to do where there is none, in place of naming one."""
    if len(candidates) == 1:
        return candidates[0]
    shown = printable(", ".join(name[:40] for name in names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    place = f"{where.file}: {where.unit} {where.number}"
    if candidates:
        several = printable(", ".join(name[:40] for name in candidates))
        raise UsageError(f"{place}: several columns may hold the prompts: {several} (of {shown}); {where.remedy}")
    first = "; the first line is taken for the names of the columns" if where.has_header else ""
    raise UsageError(f"{place}: no column that is known to hold prompts among {shown}{first}; {inner or where.remedy}")


def _not_there(names: Sequence[str], source: PromptSource, where: Where) -> UsageError:
    wanted = [name for name in prompt_columns(source) if name not in ("prompt", "messages", "turns")] or [
        source.prompt_field
    ]
    close = difflib.get_close_matches(wanted[0], names, n=1)
    hint = f" (did you mean {printable(close[0])}?)" if close else ""
    shown = printable(", ".join(name[:40] for name in names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")
    return UsageError(
        f"{where.file}: {where.unit} {where.number}: no column {' or '.join(wanted)}; its columns are {shown}{hint}; "
        f"{where.remedy}"
    )


def _configured(rows: Sequence[Mapping[str, Any]], names: Sequence[str], source: PromptSource) -> str:
    if not names:
        return "no rows"
    return ", ".join(_described(rows, name) for name in names) + (
        f" and `{source.input_field}`" if source.input_field else ""
    )


def _described(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    form = _form(rows, name)
    if form is None:
        return f"`{name}`, lists of turns" if name != "turns" and is_texts(_first(rows, name)) else f"`{name}`"
    return f"`{name}` with {form}"


def _form(rows: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """The form of the chats in a column, by its first value that is one."""
    return next((form for row in rows if (form := chat_form(row.get(name))) is not None), None)


def _is_text(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column has texts, or lists of them, which are turns."""
    first = _first(rows, name)
    return isinstance(first, str) or is_texts(first)


def _first(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((row[name] for row in rows if row.get(name) is not None), None)


def _has_other(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column of chats has texts too."""
    return any(isinstance(row.get(name), str) and chat_form(row[name]) is None for row in rows)

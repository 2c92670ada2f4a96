"""Parses a raw row into a prompt for a chat template or a tokenizer, or raises BadRow with the reason.

Handles the three kinds of rows (prompt, messages, turns) and which content is invalid; reads no file, has no tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

from pipeline.config.corpus import PromptSource, label_mistake
from pipeline.corpus.as_served import JoinedText, as_served, standard_role
from pipeline.corpus.chats import as_list, as_message, is_chat, is_spelled_texts, is_texts
from pipeline.corpus.foreign_texts import encoded, is_cut
from pipeline.corpus.json_values import MOST_LEVELS, decoded
from pipeline.corpus.modes import domain_in_mode, mode_of, stated_arguments
from pipeline.corpus.other_requests import has_place, media_of, route_without_text
from pipeline.corpus.request_fields import OtherPrompt, chosen_tools, effort_arguments, longest_prompt
from pipeline.corpus.row_facts import NO_FACTS, RowFacts
from pipeline.corpus.same_text import normalised, opening, text_id
from pipeline.corpus.spelled_lists import spelled_chat, spelled_texts
from pipeline.corpus.template_names import TemplateNames
from pipeline.escaping.terminal import printable
from pipeline.store.files import canonical_json
from pipeline.store.json_text import json_kind, parse_json

DEFAULT_DOMAIN = "default"  # of rows without a label
MAX_CHARACTERS = 1_000_000
SPELLED = "chat or list written as text"
ENCODED = "encoded text"
CUT = "text cut by a logger"
LIST_AS_TEXT = "is a list of texts; if they are the turns of a chat, set turns_field to it"

_TEXT_PARTS = ("text", "input_text", "output_text")  # of messages
_OTHER_TEXTS = ("text", "value", "parts", "message")  # where others have a text: without `content`, it is not empty


class BadRow(Exception):
    """An unusable row. Rows are counted by `kind`; `detail` holds positions and names, never content."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(printable(kind if not detail else f"{kind}: {detail}"))  # names of columns are a stranger's
        self.kind = kind


@dataclass(frozen=True)
class ParsedPrompt:
    """A prompt, before rendering.

    `plain`: a bare text, stored as the content of the only message. `group` is None if the row has none. `follow_ups` are the
    user messages after the target's first answer, after its second, and so on. `dropped_turns` and `dropped_answers` count
    the row's messages that are not used.
    """

    messages: tuple[Mapping[str, Any], ...]
    plain: bool
    domain: str
    group: str | None
    dropped_turns: int = 0
    dropped_answers: int = 0
    follow_ups: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    facts: RowFacts = NO_FACTS
    of_log: bool = False  # its domain is a client's label

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.facts.tools

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the chat template."""
        return self.facts.arguments

    @property
    def comparison_text(self) -> str:
        """The text for near-duplicate detection: all messages, normalised, but system messages, which a deployment shares."""
        messages = (*self.messages, *(message for part in self.follow_ups for message in part))
        texts = [
            normalised(message.get("content", "")) for message in messages if standard_role(message["role"]) != "system"
        ]
        return "\n".join(texts) if any(texts) else canonical_json([dict(message) for message in messages])

    @property
    def place(self) -> str:
        """The turn of a conversation and the template mode in which it is asked: similar texts in other places are no
        duplicates. Empty for a first turn in the corpus's own mode."""
        answers = sum(standard_role(message["role"]) == "assistant" for message in self.messages)
        return f"{answers} {canonical_json(dict(self.arguments))}" if answers or self.arguments else ""

    @property
    def log_mode(self) -> str | None:
        """The template mode in the name of the domain, for a prompt of a log; None for others."""
        return mode_of(self.arguments) if self.of_log else None

    @cached_property
    def text_id(self) -> str:
        """The text id of the messages up to the first answer: chats that open alike are one prompt, whatever follows."""
        return text_id(self.messages)

    @property
    def conversation(self) -> str:
        """The text id of what opens the chat: prompts that continue one chat have the same, also where each is a row."""
        begun = opening(self.messages)
        return self.text_id if len(begun) == len(self.messages) else text_id(begun)


def parse_row(value: Any, source: PromptSource, names: TemplateNames | None = None) -> ParsedPrompt:
    """The prompt in `value`, from the first of prompt, messages and turns that is not null, with its tools and template
    arguments. `names`: what the chat template has; None where it is not at hand, and then senders are read by the table alone,
    and a request's effort of thinking is no argument. Raises BadRow."""
    if isinstance(value, BadRow):
        raise value
    if not isinstance(value, Mapping):
        raise BadRow("not an object", f"a row is a JSON object, not {json_kind(value)}")
    if (route := route_without_text(value)) is not None:
        raise BadRow("request for no text", route)
    if names is not None and names.own_roles:  # the source's own roles go before the template's
        source = source.model_copy(update={"roles": {**names.own_roles, **source.roles}})
    prompt = _parse_prompt(value, source)
    if (beside := media_of(value)) and has_place(message.get("content") for message in prompt.messages):
        raise BadRow("content is not text", f"a place for what is in '{beside}'")
    try:
        arguments, longest = _arguments(value, source, names), longest_prompt(value, prompt.plain)
        tools = chosen_tools(value, _tools(value, source.tools_field), source.tools_if_none)
    except OtherPrompt as reason:
        raise BadRow(reason.kind, str(reason)) from None
    return replace(
        prompt,
        domain=domain_in_mode(prompt.domain, mode_of(arguments)),
        facts=RowFacts(tools, arguments, None, tuple(sorted(set(source.roles.values()))), longest),
    )


def row_domain(value: Mapping[str, Any], source: PromptSource) -> str:
    """The domain of a row: the source's, else its own, in the template mode that it states. Raises BadRow."""
    return domain_in_mode(_domain_label(value, source), mode_of(_arguments(value, source, None)))


def _check_spelling(value: Any, what: str) -> None:
    """Refuse a chat or a list that is a text, which tables hold where a program wrote lists into them, and encoded texts."""
    if not isinstance(value, str):
        return
    if form := encoded(value):
        raise BadRow(ENCODED, f"'{what}' is {form}")
    if spelled_chat(value):
        raise BadRow(SPELLED, f"'{what}' is a chat as a program printed it, and not the JSON of one")
    if spelled_texts(value) and not is_spelled_texts(value):  # JSON is a column's matter, `Columns.lists_as_text`
        raise BadRow(SPELLED, f"'{what}' {LIST_AS_TEXT}")


def kind_of(value: Mapping[str, Any], source: PromptSource) -> str:
    """The column that holds the prompt of a row which `parse_row` accepts."""
    return next(name for name in prompt_columns(source) if value.get(name) is not None)


def prompt_columns(source: PromptSource) -> tuple[str, str, str]:
    """The columns in the order in which a row's prompt is looked for."""
    return (source.prompt_field, source.messages_field, source.turns_field)


def _parse_prompt(value: Mapping[str, Any], source: PromptSource) -> ParsedPrompt:
    domain = _domain_label(value, source)
    group = _label(value.get(source.group_field), "group")
    instructed = _optional(value, source.system_field)
    system = () if instructed is None else ({"role": "system", "content": instructed},)
    given = None if source.prompt_field == source.turns_field else value.get(source.prompt_field)
    turns = given if is_texts(given) and not is_chat(given) else None
    if given is not None and turns is None and not is_chat(given):
        _check_spelling(given, source.prompt_field)
        text, further = _text(given, source.prompt_field), _optional(value, source.input_field)
        text = text if further is None else f"{text}\n\n{further}"
        return ParsedPrompt((*system, {"role": "user", "content": text}), not system, domain, group)
    name = source.messages_field if given is None else source.prompt_field
    if turns is None and value.get(name) is not None:
        messages, answers = _messages(value[name], name, source.roles)
        if messages[0]["role"] != "system":
            messages = (*system, *messages)
        if source.every_turn:
            return _every_turn(messages, answers, name, domain, group)
        return ParsedPrompt(messages, False, domain, group, dropped_answers=answers)
    if turns is not None or value.get(source.turns_field) is not None:
        name = source.turns_field if turns is None else source.prompt_field
        turns = as_list(value[name])
        if not isinstance(turns, list) or not turns:
            raise BadRow("bad turns", f"'{name}' is not a list of texts")
        asked = turns if source.every_turn else turns[:1]
        texts = [_text(turn, f"{name}[{number}]") for number, turn in enumerate(asked, start=1)]
        for text in texts:
            _check_spelling(text, name)
        first, *later = [({"role": "user", "content": text},) for text in texts]
        dropped = len(turns) - len(asked)
        return ParsedPrompt((*system, *first), False, domain, group, dropped, follow_ups=tuple(later))
    raise _missing_prompt(value, source)


def _optional(value: Mapping[str, Any], field: str | None) -> str | None:
    """A further text of a row; None where it has none."""
    given = None if field is None else value.get(field)
    if given is None or (isinstance(given, str) and not given.strip()):
        return None
    return _text(given, str(field))


def _missing_prompt(value: Mapping[str, Any], source: PromptSource) -> BadRow:
    wanted = prompt_columns(source)
    null = [name for name in wanted if name in value]
    if null:
        return BadRow("null prompt", f"'{null[0]}' is null")
    names = printable(", ".join(str(name)[:40] for name in list(value)[:8]))
    return BadRow("missing column", f"no {' or '.join(wanted)} among the columns {names or '(none)'}")


def _text(value: Any, what: str) -> str:
    if value is None:
        raise BadRow("null prompt", f"'{what}' is null")
    if not isinstance(value, str):
        raise BadRow("not text", f"'{what}' is {json_kind(value)}")
    if len(value) > MAX_CHARACTERS:
        raise BadRow("too many characters", f"'{what}' has {len(value):,}, at most {MAX_CHARACTERS:,} are read")
    if not value.strip():
        raise BadRow("empty prompt", f"'{what}' is empty")
    if "\0" in value:
        raise BadRow("NUL character", f"'{what}' at character {value.index(chr(0)) + 1}")
    _check_whole(value, what)
    _check_unicode(value, what)
    return value


def _check_whole(value: str, what: str) -> None:
    if is_cut(value):
        raise BadRow(CUT, f"'{what}'; log whole texts")


def _check_unicode(value: str, what: str) -> None:
    """Reject lone surrogates: JSON can contain them, but they cannot be encoded or tokenised."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        # As a reader of tables and arrays writes a byte that is not UTF-8.
        escaped = 0xDC80 <= ord(value[error.start]) <= 0xDCFF
        mistake = "is not UTF-8 (convert Latin-1 text to UTF-8)" if escaped else "has a lone surrogate"
        raise BadRow("invalid unicode", f"'{what}' {mistake} at character {error.start + 1}") from None


def _messages(value: Any, what: str, roles: Mapping[str, str]) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The chat up to its last user message, and the number of assistant messages after it, which the target generates."""
    value = as_list(value)
    if not isinstance(value, list) or not value:
        spelled = "text that is not JSON, " if isinstance(value, str) and value.lstrip().startswith("[") else ""
        raise BadRow("bad messages", f"'{what}' is {spelled}not a list of messages")
    messages = [_message(entry, f"{what}[{number}]", roles) for number, entry in enumerate(value, start=1)]
    if sum(len(message.get("content", "")) for message in messages) > MAX_CHARACTERS:
        raise BadRow("too many characters", f"'{what}' has more than {MAX_CHARACTERS:,}")
    kept = len(messages)
    while kept and standard_role(messages[kept - 1]["role"]) == "assistant":
        kept -= 1
    if all(message["role"] == "system" for message in messages[:kept]):
        raise BadRow("bad messages", f"'{what}' has no user message")
    return tuple(messages[:kept]), len(messages) - kept


def _every_turn(
    messages: tuple[Mapping[str, Any], ...], answers: int, what: str, domain: str, group: str | None
) -> ParsedPrompt:
    """The messages between the answers, since the target generates its own answers. Stops before a tool message, because the
    target may not have called the tool."""
    parts: list[list[Mapping[str, Any]]] = [[]]
    for before, message in zip((None, *messages), messages, strict=False):
        if standard_role(message["role"]) == "assistant":
            answers += 1
        elif before is not None and standard_role(before["role"]) == "assistant":
            parts.append([message])
        else:
            parts[-1].append(message)
    if all(message["role"] == "system" for message in parts[0]):
        raise BadRow("bad messages", f"'{what}' begins with an assistant message: no user message before it")
    first, *later = map(tuple, parts)
    asked = list(takewhile(lambda part: all(standard_role(message["role"]) != "tool" for message in part), later))
    return ParsedPrompt(first, False, domain, group, len(later) - len(asked), answers, tuple(asked))


def _message(entry: Any, what: str, roles: Mapping[str, str]) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise BadRow("bad messages", f"'{what}' is {json_kind(entry)}, not {{role, content}}")
    try:
        entry = as_message(entry, roles)
    except ValueError as why:
        raise BadRow("bad messages", f"'{what}' {why}") from None
    if beside := media_of(entry):
        raise BadRow("content is not text", f"'{what}' has `{beside}`")
    content = _content(entry.get("content"), what)
    if content in (None, []) and (other := next(filter(entry.get, _OTHER_TEXTS), None)):
        raise BadRow("bad messages", f"'{what}' has no content, and its text in `{other}`; write it as content")
    if content in (None, []) and standard_role(entry["role"]) != "user":
        content = ""  # as servers read it
    try:
        message = as_served({**entry, "content": content})
    except ValueError as why:
        raise BadRow("bad messages", f"the tool_calls of '{what}' {why}") from None
    if standard_role(message["role"]) == "user" and content in (None, []):
        raise BadRow("empty prompt", f"the content of '{what}' is {json_kind(content)}")
    if not isinstance(content, str):
        raise BadRow("bad messages", f"the content of '{what}' is {json_kind(content)}, not text")
    if standard_role(message["role"]) == "user":
        _text(content, what)
    elif "\0" in content:
        raise BadRow("NUL character", f"'{what}'")
    else:
        _check_whole(content or "", what)
    try:
        spelled = canonical_json(message)
    except (TypeError, ValueError):
        raise BadRow("bad messages", f"'{what}' holds a value that JSON does not support") from None
    _check_unicode(spelled, what)
    return message


def _content(content: Any, what: str) -> Any:
    """The text of OpenAI's content parts (chat and responses), joined as vLLM joins them; other values as they are."""
    if not isinstance(content, list) or not content:
        return content
    for part in content:
        if (
            not isinstance(part, Mapping)
            or part.get("type") not in _TEXT_PARTS
            or not isinstance(part.get("text"), str)
        ):
            kind = f"of type {part.get('type')}" if isinstance(part, Mapping) else f"that is {json_kind(part)}"
            raise BadRow("content is not text", f"'{what}' has a part {printable(kind[:48])}")
    texts = tuple(part["text"] for part in content)
    return JoinedText(texts) if len(texts) > 1 else texts[0]


def _tools(row: Mapping[str, Any], field: str | None) -> tuple[Mapping[str, Any], ...]:
    """The row's tools, as they are: a schema may be null."""
    tools = None if field is None else row.get(field)
    if (
        isinstance(tools, str) and tools.strip()
    ):  # columns of one type cannot hold schemas of different shapes, so datasets
        try:  # often keep them as text
            tools = parse_json(tools, foreign=True, levels=MOST_LEVELS)
        except ValueError as error:
            raise BadRow("bad tools", f"'{field}' is text, but not JSON: {error}") from None
    if not tools:
        return ()
    tools = list(map(decoded, tools)) if isinstance(tools, list) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("bad tools", f"'{field}' is not a list of function schemas")
    try:
        _check_unicode(canonical_json(tools), str(field))
    except (TypeError, ValueError, RecursionError):
        raise BadRow("bad tools", f"'{field}' holds a value that JSON does not support") from None
    return tuple(tools)


def _arguments(row: Mapping[str, Any], source: PromptSource, names: TemplateNames | None) -> dict[str, Any]:
    """The arguments of the chat template: the source's, and the row's own before them."""
    field = source.arguments_field
    try:
        stated = stated_arguments(None if field is None else row.get(field))
    except ValueError as mistake:
        raise BadRow("bad template arguments", f"'{field}' {mistake}") from None
    implied = {} if names is None else effort_arguments(row, stated, names.reads)
    return {**source.chat_template_arguments, **implied, **stated}


def _domain_label(row: Mapping[str, Any], source: PromptSource) -> str:
    return source.domain or _label(row.get(source.domain_field), "domain") or DEFAULT_DOMAIN


def _label(value: Any, what: str) -> str | None:
    if value is None or value == "" or value != value:  # data frames use NaN for missing values
        return None
    if not isinstance(value, str | int | float):
        raise BadRow(f"bad {what}", f"it is {json_kind(value)}, not text")
    text = str(value)
    if mistake := label_mistake(text):
        raise BadRow(f"bad {what}", mistake)
    return text

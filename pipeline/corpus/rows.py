"""From a raw row to a request that a chat template or a tokenizer can take, or to one reason why not.

Knows the three kinds of row (prompt, messages, turns) and what no prompt may contain; reads no file, has no tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.store.files import canonical_json

MAX_CHARACTERS = 1_000_000
_MAX_LABEL = 200  # characters of a domain or group: more is not a label but a mistaken column


class BadRow(Exception):
    """A row that is no usable prompt. `kind` is what is counted; `detail` holds positions and names, never content."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind if not detail else f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True)
class Request:
    """What the target is asked.

    `plain` is a bare text that has not been put into a chat (it is then the only message's content). `group` is None
    where the row names none. `follow_ups` are what is asked once the target has answered, then once it has answered that.
    `dropped_turns` and `dropped_answers` count what lay behind the prompt, no part of it.
    """

    messages: tuple[Mapping[str, Any], ...]
    plain: bool
    domain: str
    group: str | None
    dropped_turns: int = 0
    dropped_answers: int = 0
    follow_ups: tuple[tuple[Mapping[str, Any], ...], ...] = ()

    @property
    def asked(self) -> str:
        """The text two requests are compared by: all messages but the system's, which a whole deployment shares."""
        messages = (*self.messages, *(message for part in self.follow_ups for message in part))
        return "\n".join(message["content"] for message in messages if message["role"] != "system")


def parse_row(value: Any, source: PromptSource) -> Request:
    """The request in `value`; the first of prompt, messages and turns that is not null counts. Raises BadRow."""
    if isinstance(value, BadRow):
        raise value
    if not isinstance(value, Mapping):
        raise BadRow("not an object", f"a row is a JSON object, not {type(value).__name__}")
    domain = source.domain or _label(value.get(source.domain_field), "domain") or "default"
    group = _label(value.get(source.group_field), "group")
    if value.get(source.prompt_field) is not None:
        text = _text(value[source.prompt_field], source.prompt_field)
        return Request(({"role": "user", "content": text},), True, domain, group)
    if value.get(source.messages_field) is not None:
        messages, answers = _messages(value[source.messages_field], source.messages_field)
        if source.every_turn:
            return _every_turn(messages, answers, source.messages_field, domain, group)
        return Request(messages, False, domain, group, dropped_answers=answers)
    if value.get(source.turns_field) is not None:
        turns = value[source.turns_field]
        if not isinstance(turns, list) or not turns:
            raise BadRow("bad turns", f"'{source.turns_field}' is not a list of texts")
        asked = turns if source.every_turn else turns[:1]
        texts = [_text(turn, f"{source.turns_field}[{number}]") for number, turn in enumerate(asked, start=1)]
        first, *later = [({"role": "user", "content": text},) for text in texts]
        return Request(first, False, domain, group, len(turns) - len(asked), follow_ups=tuple(later))
    raise _nothing_there(value, source)


def _nothing_there(value: Mapping[str, Any], source: PromptSource) -> BadRow:
    wanted = (source.prompt_field, source.messages_field, source.turns_field)
    null = [name for name in wanted if name in value]
    if null:
        return BadRow("null prompt", f"'{null[0]}' is null")
    names = ", ".join(str(name)[:40] for name in list(value)[:8]).encode(errors="replace").decode()
    return BadRow("missing column", f"none of {', '.join(wanted)} among the columns {names or '(none)'}")


def _text(value: Any, what: str) -> str:
    if value is None:
        raise BadRow("null prompt", f"'{what}' is null")
    if not isinstance(value, str):
        raise BadRow("not text", f"'{what}' is {type(value).__name__}")
    if len(value) > MAX_CHARACTERS:
        raise BadRow("too many characters", f"'{what}' has {len(value):,}, at most {MAX_CHARACTERS:,} are read")
    if not value.strip():
        raise BadRow("empty prompt", f"'{what}' is empty")
    if "\0" in value:
        raise BadRow("NUL character", f"'{what}' at character {value.index(chr(0)) + 1}")
    _check_unicode(value, what)
    return value


def _check_unicode(value: str, what: str) -> None:
    """JSON can spell half of a surrogate pair, which no encoding and no tokenizer can take."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow("invalid unicode", f"'{what}' has a lone surrogate at character {error.start + 1}") from None


def _messages(value: Any, what: str) -> tuple[tuple[Mapping[str, Any], ...], int]:
    """The chat up to its last question, and how many answers stood behind it: the target is to give those."""
    if not isinstance(value, list) or not value:
        raise BadRow("bad messages", f"'{what}' is not a list of messages")
    messages = [_message(entry, f"{what}[{number}]") for number, entry in enumerate(value, start=1)]
    if sum(len(message["content"]) for message in messages) > MAX_CHARACTERS:
        raise BadRow("too many characters", f"'{what}' has more than {MAX_CHARACTERS:,}")
    kept = len(messages)
    while kept and messages[kept - 1]["role"] == "assistant":
        kept -= 1
    if all(message["role"] == "system" for message in messages[:kept]):
        raise BadRow("bad messages", f"'{what}' asks nothing: no message of a user")
    return tuple(messages[:kept]), len(messages) - kept


def _every_turn(
    messages: tuple[Mapping[str, Any], ...], answers: int, what: str, domain: str, group: str | None
) -> Request:
    """What stands between the answers, which the target gives anew; up to where a tool would answer, for the target may not
    have called it."""
    parts: list[list[Mapping[str, Any]]] = [[]]
    for before, message in zip((None, *messages), messages, strict=False):
        if message["role"] == "assistant":
            answers += 1
        elif before is not None and before["role"] == "assistant":
            parts.append([message])
        else:
            parts[-1].append(message)
    if all(message["role"] == "system" for message in parts[0]):
        raise BadRow("bad messages", f"'{what}' begins with an answer: no message of a user before it")
    first, *later = map(tuple, parts)
    asked = list(takewhile(lambda part: all(message["role"] != "tool" for message in part), later))
    return Request(first, False, domain, group, len(later) - len(asked), answers, tuple(asked))


def _message(entry: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise BadRow("bad messages", f"'{what}' is {type(entry).__name__}, not {{role, content}}")
    role, content = entry.get("role"), entry.get("content")
    if not isinstance(role, str) or not role:
        raise BadRow("bad messages", f"'{what}' has no role")
    if not isinstance(content, str):
        raise BadRow("bad messages", f"the content of '{what}' is {type(content).__name__}, not text")
    if role == "user":
        _text(content, what)
    elif "\0" in content:
        raise BadRow("NUL character", f"'{what}'")
    # Columnar files fill absent keys of a message with null; a template tells a null key from an absent one.
    message = {key: item for key, item in entry.items() if item is not None}
    try:
        spelled = canonical_json(message)
    except (TypeError, ValueError):
        raise BadRow("bad messages", f"'{what}' holds something that JSON cannot") from None
    _check_unicode(spelled, what)
    return message


def _label(value: Any, what: str) -> str | None:
    if value is None or value == "" or value != value:  # a NaN is how data frames spell a missing value
        return None
    if not isinstance(value, str | int | float):
        raise BadRow(f"bad {what}", f"it is {type(value).__name__}, not text")
    text = str(value)
    if len(text) > _MAX_LABEL or "\0" in text:
        raise BadRow(f"bad {what}", f"{len(text):,} characters, at most {_MAX_LABEL}, without NUL")
    _check_unicode(text, what)
    return text

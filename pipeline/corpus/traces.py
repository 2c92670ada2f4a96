"""Whether a chat template writes every message of a prompt. Has no tokenizer; what renders is given to it.

A template without a branch for a role drops its messages without a word: the target then answers another prompt than the log's.
The messages are rendered once with a number of its own in the place of each text and each name of a tool, and every number must
be in the prompt. That depends on the template, its arguments and which parts messages of which role have, so it is decided once
for each such sequence.

No rejection: parts that a template leaves out on purpose, which are thinking of earlier answers, empty texts, and the text beside
a tool call where the call itself is written.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.corpus.as_served import ROLES
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.escaping.terminal import printable
from pipeline.store.files import canonical_json

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Mapping[str, Any]], str]
WITHOUT_TRACE = "message that the chat template does not write"
UNKNOWN_ROLE = "unknown role"
NO_TOOLS = "chat template without tools"
_FIRST = 730_551_000_000  # numbers of twelve digits: no template changes digits, and none is a part of another
_TOOLS = 840_551_000_000
_OWN_TOOLS = "set tools_field to null to do so too"
_MOST_SHAPES = 50_000  # that are kept


class Traces:
    """Checks prompts for messages without a trace. `render` gives the text of messages with arguments of the template, and raises
    BadRow; `templates` is the source of all templates of the tokenizer."""

    def __init__(self, render: Render, templates: str) -> None:
        self._render, self._templates = render, templates
        self._found: dict[tuple[Any, ...], tuple[str, str] | None] = {}

    def check(self, prompt: ParsedPrompt, arguments: Mapping[str, Any]) -> None:
        """BadRow, whose kind names the role, for a message of `prompt` (follow-ups included) that the template does not write,
        for a role that only the row knows, and for tools that the template ignores. `arguments` are all of the template's,
        without the prompt's tools."""
        messages = [*prompt.messages]
        for part in prompt.follow_ups:
            messages += [{"role": "assistant", "content": "answer"}, *part]
        tools = tuple(_tool_shape(tool) for tool in prompt.tools)
        shape = (canonical_json(dict(arguments)), tools, prompt.roles, *map(_shape, messages))
        if shape not in self._found:
            if len(self._found) >= _MOST_SHAPES:
                self._found.clear()
            self._found[shape] = self._fault(messages, prompt, arguments)
        if (fault := self._found[shape]) is not None:
            raise BadRow(*fault)

    def _fault(
        self, messages: Sequence[Message], prompt: ParsedPrompt, arguments: Mapping[str, Any]
    ) -> tuple[str, str] | None:
        for number, message in enumerate(messages, start=1):
            role = message["role"]
            if role not in ROLES and role not in prompt.roles and not self._names(role):
                return UNKNOWN_ROLE, f"'{printable(role[:40])}' of message {number} is not in the chat template"
        marked = [_marked(message, _FIRST + 2 * number) for number, message in enumerate(messages)]
        named = [_named(tool, f"t{_TOOLS + number}") for number, tool in enumerate(prompt.tools)]
        text = self._render(marked, {**arguments, "tools": named} if named else arguments)
        for number, (tool, given) in enumerate(zip(prompt.tools, named, strict=True)):
            if tool != given and str(_TOOLS + number) not in text:
                return NO_TOOLS, f"it ignores tool {number + 1} of {len(named)}; {_OWN_TOOLS}"
        if named and text == self._render(marked, arguments):
            return NO_TOOLS, f"it ignores them; {_OWN_TOOLS}"
        for number, message in enumerate(messages):
            if not _is_written(message, text, _FIRST + 2 * number):
                role = printable(str(message["role"])[:40])
                return f"{role} {WITHOUT_TRACE}", f"message {number + 1} of {len(messages)}"
        return None

    def _names(self, role: str) -> bool:
        return re.search(rf"""(['"]){re.escape(role)}\1""", self._templates) is not None


def _shape(message: Message) -> tuple[Any, ...]:
    """What a template can tell of a message beside its texts."""
    return message["role"], _has_text(message), *sorted(name for name, item in message.items() if item)


def _tool_shape(tool: Mapping[str, Any]) -> tuple[Any, ...]:
    return str(tool.get("type")), isinstance(tool.get("function"), Mapping), "name" in tool


def _has_text(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) and bool(content.strip())


def _marked(message: Message, number: int) -> dict[str, Any]:
    found = dict(message)
    if _has_text(message):
        found["content"] = f"text {number}"
    if isinstance(calls := message.get("tool_calls"), list):
        found["tool_calls"] = [_named(call, f"f{number + 1}") for call in calls]
    return found


def _named(call: Any, name: str) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": {**function, "name": name}}
    return {**call, "name": name} if "name" in call else call


def _is_written(message: Message, text: str, number: int) -> bool:
    calls = message.get("tool_calls")
    if calls:
        return str(number + 1) in text
    return not _has_text(message) or str(number) in text

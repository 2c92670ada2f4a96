"""Whether a chat template writes every message of a prompt. Has no tokenizer; what renders is given to it.

A template without a branch for a role drops its messages without a word: the target then answers another prompt than the log's.
The messages are rendered once with a number of its own in the place of each text and of each name of a tool, declared or called,
and every number must be in the prompt. That depends on the template, its arguments and which parts messages of each role have;
it is decided once for each such sequence.

No rejection: parts that a template leaves out on purpose, which are thinking of earlier answers, empty texts, and the text beside
a tool call where the call itself is written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from pipeline.corpus.as_served import ROLES
from pipeline.corpus.rows import BadRow, ParsedPrompt
from pipeline.corpus.template_names import TemplateNames
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


class MessageTraces:
    """Checks prompts for messages without a trace. `render` gives the text of messages with arguments of the template, and raises
    BadRow; `names` are those of all templates of the tokenizer."""

    def __init__(self, render: Render, names: TemplateNames) -> None:
        self._render, self._names = render, names
        self._found: dict[tuple[Any, ...], tuple[str, str] | None] = {}

    def check(self, prompt: ParsedPrompt, arguments: Mapping[str, Any]) -> None:
        """BadRow, whose kind names the role, for a message of `prompt` (follow-ups included) that the template does not write,
        for a role that only the row knows, and for tools that the template ignores. `arguments` are all of the template's,
        without the prompt's tools."""
        messages = [*prompt.messages]
        for part in prompt.follow_ups:
            messages += [{"role": "assistant", "content": "answer"}, *part]
        tools = tuple(_tool_shape(tool) for tool in prompt.tools)
        shape = (canonical_json(dict(arguments)), tools, prompt.facts.roles, *map(_shape, messages))
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
            if role not in ROLES and role not in prompt.facts.roles and not self._names.quotes(role):
                return UNKNOWN_ROLE, f"'{printable(role[:40])}' of message {number} is not in the chat template"
        numbers = count(_FIRST)
        marked, marks = zip(*(_marked(message, numbers) for message in messages), strict=True)
        named = [_named(tool, f"t{_TOOLS + number}") for number, tool in enumerate(prompt.tools)]
        text = self._render(marked, {**arguments, "tools": named} if named else arguments)
        for number, (tool, given) in enumerate(zip(prompt.tools, named, strict=True)):
            if tool != given and str(_TOOLS + number) not in text:
                return NO_TOOLS, f"it ignores tool {number + 1} of {len(named)}; {_OWN_TOOLS}"
        if named and text == self._render(marked, arguments):
            return NO_TOOLS, f"it ignores them; {_OWN_TOOLS}"
        for number, (message, wanted) in enumerate(zip(messages, marks, strict=True), start=1):
            if any(str(mark) not in text for mark in wanted):
                role = printable(str(message["role"])[:40])
                return f"{role} {WITHOUT_TRACE}", f"message {number} of {len(messages)}"
        return None


def _shape(message: Message) -> tuple[Any, ...]:
    """What a template can show of a message beside its texts."""
    calls = tuple(_tool_shape(call) if isinstance(call, Mapping) else None for call in _calls(message))
    return message["role"], _has_text(message), calls, *sorted(name for name, item in message.items() if item)


def _tool_shape(tool: Mapping[str, Any]) -> tuple[Any, ...]:
    return str(tool.get("type")), isinstance(tool.get("function"), Mapping), "name" in tool


def _has_text(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, str) and bool(content.strip())


def _calls(message: Message) -> Sequence[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else ()


def _marked(message: Message, numbers: Iterator[int]) -> tuple[dict[str, Any], list[int]]:
    """The message with a number in place of its text and of each call's name, and those that must be written: of the calls, where
    it has some, since a template may leave out the text beside them."""
    marked, wanted = dict(message), list[int]()
    if _has_text(message):
        wanted = [next(numbers)]
        marked["content"] = f"text {wanted[0]}"
    if calls := _calls(message):
        wanted = [number for number, _ in zip(numbers, calls, strict=False)]
        marked["tool_calls"] = [_named(call, f"f{number}") for call, number in zip(calls, wanted, strict=True)]
    return marked, wanted


def _named(call: Any, name: str) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": {**function, "name": name}}
    return {**call, "name": name} if "name" in call else call

"""A message as servers hand it to the chat template: its role, nulls, tool calls and their arguments. Pure.

Where vLLM 0.32.0 (`renderers/chat_utils.py`), SGLang 0.5.23 (`entrypoints/openai/serving_chat.py`) and llama.cpp
(`common/chat.cpp`) agree, their rule is taken; where they differ, the message is refused: nothing states which engine it was.
tests/unit/corpus/served_messages.py is the table of cases; `make conformance-sources` compares it with the engines' own code.

- Keys of a message that are null are absent. Nulls within arguments and tool schemas stay: a schema with `default: null` says so.
- `content` that is null or absent is the empty text.
- Arguments are an object: JSON text is parsed; none, null and "" are {}. vLLM takes {} for anything else, SGLang refuses it,
  llama.cpp keeps the text.
- The older `function_call` and the role `function`, which servers drop or pass on, are read as `tool_calls` and `tool`.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.corpus.json_values import MOST_LEVELS, decoded
from pipeline.store.json_text import json_kind, parse_json

ROLES = ("system", "user", "assistant", "tool")  # that every chat template is expected to have
SENDERS: Mapping[str, str] = {
    "system": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "tool_response": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "ipython": "tool",
}
"""Names of senders, as `role` and ShareGPT's `from` have them, and the roles that they are, where the template has no branch for
the name itself. `developer` is none of them: whether it is read as `system` is up to the deployment (`roles` of a source)."""


class JoinedText(str):
    """A content of several text parts, as a text (joined as vLLM and llama.cpp join them) that still has its parts: templates
    that go over the parts of a content get them from vLLM and SGLang. JSON of it has the text only."""

    parts: tuple[str, ...]

    def __new__(cls, parts: tuple[str, ...]) -> "JoinedText":
        text = super().__new__(cls, "\n".join(parts))
        text.parts = parts
        return text


def with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` for a template that goes over the parts of a content, where it has several."""
    content = message.get("content")
    if not isinstance(content, JoinedText):
        return dict(message)
    return {**message, "content": [{"type": "text", "text": part} for part in content.parts]}


def with_joined_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """What `with_parts` was made of."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    return {**message, "content": JoinedText(tuple(part["text"] for part in content))}


def role_of(sender: str, roles: Mapping[str, str]) -> str | None:
    """The role of a sender: as `roles` have it, which are those of the source and the template's own, else by the table. None for
    one that neither has."""
    name = sender.strip().lower()
    return roles.get(sender) or roles.get(name) or SENDERS.get(name)


def standard_role(role: str) -> str:
    """Which of `ROLES` a role is, by whatever name the template has for it; another role as it is."""
    return SENDERS.get(role, role)


def as_served(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message`, of one of the roles of `SENDERS` or another, as the template gets it. ValueError, which states why, for tool
    calls that engines read differently."""
    served = {name: item for name, item in message.items() if item is not None}
    call = decoded(served.pop("function_call", None))
    calls = decoded(served.pop("tool_calls", None)) or ([{"type": "function", "function": call}] if call else [])
    served.setdefault("content", "")
    if standard_role(str(served.get("role"))) != "assistant":
        return served
    if calls:
        served["tool_calls"] = [_served_call(call) for call in _list_of_calls(calls)]
    return with_thinking(served)


def with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call for a chat template: servers give the arguments as JSON text, and templates expect an object. Text that is not
    JSON stays."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = parse_json(function["arguments"], foreign=True, levels=MOST_LEVELS)
    except ValueError:
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}


def with_thinking(message: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's message for a chat template. Servers, clients and templates name its thinking `reasoning_content` or
    `reasoning`: as in vLLM, the message has both."""
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(thinking, str):
        return dict(message)
    return {**message, "reasoning_content": thinking, "reasoning": thinking}


def _list_of_calls(calls: Any) -> list[Mapping[str, Any]]:
    calls = list(map(decoded, calls)) if isinstance(calls, list) else calls
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise ValueError("must be a list of calls")
    return calls


def _served_call(call: Mapping[str, Any]) -> dict[str, Any]:
    served = with_arguments(call)
    function = served.get("function")
    if not isinstance(function, Mapping):
        return served  # of a form that only templates may have
    arguments = function.get("arguments")
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, Mapping):
        kind = "text that is not JSON" if isinstance(arguments, str) else json_kind(arguments)
        raise ValueError(f"have arguments that are {kind} and no object, which engines read differently")
    return {**served, "function": {**function, "arguments": arguments}}

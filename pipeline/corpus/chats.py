"""The forms in which files hold chats: OpenAI's {role, content}, ShareGPT's {from, value}, JSON text, columns of lists. Pure."""

from collections.abc import Mapping
from typing import Any

from pipeline.store.json_text import parse_json

_MOST_LEVELS = 64  # of lists and objects in each other

_SENDERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_CALL = "function_call"  # an assistant's, with the call as JSON text
SENDERS = (*_SENDERS, _CALL)
"""Values of `from` in ShareGPT files."""


def as_list(value: Any) -> Any:
    """A chat as a list of messages where it is the JSON text of one, or an object of lists, as `datasets` stores a sequence of
    objects. Other values as they are."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return parse_json(value, foreign=True, levels=_MOST_LEVELS)
        except ValueError:
            return value
    if isinstance(value, Mapping):
        columns = {name: item for name, item in value.items() if item is not None}
        lists = all(isinstance(item, list) for item in columns.values())
        if lists and len({len(item) for item in columns.values()}) == 1:
            return [dict(zip(columns, items, strict=True)) for items in zip(*columns.values(), strict=True)]
    return value


def is_chat(value: Any) -> bool:
    """Whether `value` is a list of messages in one of these forms."""
    return chat_form(value) is not None


def chat_form(value: Any) -> str | None:
    """ "role/content" or "from/value", the keys of a chat's messages; None for what is no chat. Reads JSON text too."""
    messages = as_list(value)
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], Mapping):
        return None
    if is_share_gpt(messages[0]):
        return "from/value"
    return (
        "role/content" if "role" in messages[0] and ("content" in messages[0] or "tool_calls" in messages[0]) else None
    )


def is_share_gpt(entry: Mapping[str, Any]) -> bool:
    return "role" not in entry and "from" in entry and "value" in entry


def message_of_share_gpt(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """{from, value} as {role, content}; None for an unknown sender. Other keys are dropped."""
    sender = entry["from"].strip().lower() if isinstance(entry["from"], str) else None
    if sender == _CALL:
        return _call(entry["value"])
    role = _SENDERS.get(sender or "")
    return None if role is None else {"role": role, "content": entry["value"]}


def _call(value: Any) -> Mapping[str, Any]:
    try:
        found = parse_json(value, foreign=True, levels=_MOST_LEVELS) if isinstance(value, str) else value
    except ValueError:
        found = None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        return {"role": "assistant", "content": value}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }


def with_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call for a chat template: servers give the arguments as JSON text, and templates expect an object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = parse_json(function["arguments"], foreign=True, levels=_MOST_LEVELS)
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

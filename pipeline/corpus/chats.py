"""The forms in which files hold chats: OpenAI's {role, content}, ShareGPT's {from, value}, JSON text, columns of lists. Pure."""

from collections.abc import Mapping
from typing import Any

from pipeline.corpus.as_served import SENDERS, role_of
from pipeline.corpus.json_values import decoded

_CALL = "function_call"  # an assistant's, with the call as JSON text


def as_list(value: Any) -> Any:
    """A chat as a list of messages where it is the JSON text of one, a list of such texts, or an object of lists, as `datasets`
    stores a sequence of objects. Other values as they are."""
    if isinstance(value, str):
        messages = decoded(value)
        return messages if isinstance(messages, list) else value
    if is_texts(value) and all(
        isinstance(message, Mapping) and _is_message(message) for message in map(decoded, value)
    ):
        return list(map(decoded, value))
    if isinstance(value, Mapping):
        columns = {name: item for name, item in value.items() if item is not None}
        lists = all(isinstance(item, list) for item in columns.values())
        if lists and len({len(item) for item in columns.values()}) == 1:
            return [dict(zip(columns, items, strict=True)) for items in zip(*columns.values(), strict=True)]
    return value


def is_texts(value: Any) -> bool:
    """Whether `value` is a list of texts: the turns of a user."""
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def is_spelled_texts(value: Any) -> bool:
    """Whether `value` is the JSON text of a list of texts."""
    return isinstance(value, str) and is_texts(decoded(value))


def _is_message(entry: Mapping[str, Any]) -> bool:
    return is_share_gpt(entry) or ("role" in entry and ("content" in entry or "tool_calls" in entry))


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
    return "role/content" if _is_message(messages[0]) else None


def is_share_gpt(entry: Mapping[str, Any]) -> bool:
    return "role" not in entry and "from" in entry and "value" in entry


def as_message(entry: Mapping[str, Any], roles: Mapping[str, str]) -> dict[str, Any]:
    """A message with the role of its sender. Of {from, value} other keys are dropped. ValueError, which states why, for a message
    without a role, and for an unknown `from`; a `role` that is not known stays, since a template may have it."""
    name = "from" if is_share_gpt(entry) else "role"
    sender = entry.get(name)
    if not isinstance(sender, str) or not sender:
        raise ValueError("has no role")
    if name == "role":
        return {**entry, "role": role_of(sender, roles) or sender}
    if sender.strip().lower() == _CALL:
        return _call(entry["value"])
    if (role := role_of(sender, roles)) is None:
        raise ValueError(f"is from none of {', '.join((*SENDERS, _CALL))}")
    return {"role": role, "content": entry["value"]}


def _call(value: Any) -> dict[str, Any]:
    stated = decoded(value)
    calls = stated if isinstance(stated, list) else [stated]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        return {"role": "assistant", "content": value}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }

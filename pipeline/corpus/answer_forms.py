"""The forms in which servers give answers, each read into one normal form. Pure.

A form is known by its keys. An object of no known form is no answer, whatever it holds. Where an object may stand, so may its
JSON text. Forms: OpenAI's chat, completion (vLLM, SGLang, llama.cpp, LiteLLM) and Responses; Anthropic's messages; the own routes
of SGLang (`/generate`), llama.cpp (`/completion`), TGI and Ollama; a message; a text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.corpus.foreign_texts import encoded
from pipeline.corpus.json_values import decoded

STOP, LENGTH, CALLS = "stop", "length", "tool_calls"
STOP_STRING = "a stop string"  # as a reason: its tokens are not in a log
# What ends an answer, by the words of the forms above.
_REASONS = {
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "completed"), STOP),
    **dict.fromkeys(("length", "limit", "max_tokens", "max_output_tokens", "max_new_tokens", "model_length"), LENGTH),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), CALLS),
    **dict.fromkeys(("stop_sequence", "word"), STOP_STRING),
}
_INNER = ("body", "response", "result", "message")  # of batch outputs, around an answer
_MOST_INNER = 3
# Of a server's answer, beside `choices`: Anthropic, SGLang, llama.cpp, TGI, Ollama.
_OF_SERVERS = (
    {"content", "stop_reason"},
    {"meta_info", "text"},
    {"meta_info", "output_ids"},
    *({"content", name} for name in ("stop_type", "stopped_eos", "stopped_limit", "stopped_word")),
    {"generated_text", "details"},
    {"done", "done_reason"},
)
_OPENS = re.compile(r"""\s*\{\s*['"](?:choices|role|object|generated_text|candidates)['"]\s*:""")


class UnusableAnswer(Exception):
    """An answer that is not used; the text is the reason, by which they are counted."""


@dataclass(frozen=True)
class Answered:
    """An answer in the normal form."""

    said: Any  # a text, or a message with content, thinking and tool calls as OpenAI's API has them
    reason: str | None = None  # what ended it: STOP, LENGTH, CALLS, STOP_STRING or another word; None: not stated
    facts: Mapping[str, Any] = field(default_factory=dict)  # of the server: token ids, usage
    completes: bool = False  # of a route that applies no chat template


def reason_of(word: Any) -> str | None:
    """The reason of the end that a word of one of the forms states; an unknown word as it is."""
    return None if word is None else _REASONS.get(str(word), str(word))


def ended(facts: Mapping[str, Any]) -> str | None:
    """The reason that a row or a message states: under OpenAI's name, or Anthropic's, which is vLLM's name for a stop string too.
    SGLang's is `matched_stop`."""
    words = [word for name in ("stop_reason", "matched_stop") if isinstance(word := facts.get(name), str)]
    if any(word not in _REASONS for word in words):
        return STOP_STRING
    return reason_of(facts["finish_reason"] if facts.get("finish_reason") is not None else next(iter(words), None))


def read_answer(given: Any) -> Answered:
    """The answer that `given` is, in whatever form. UnusableAnswer where there is none, or none of a known form."""
    value = decoded(given)
    if isinstance(value, str):
        if _OPENS.match(value):
            raise UnusableAnswer("an answer as text that is not JSON")
        if found_form := encoded(value):
            raise UnusableAnswer(f"an answer that is {found_form}")
        return Answered(value)
    if isinstance(given, str) and not _is_of_a_server(value):
        return Answered(given)  # the target has answered in JSON
    for _ in range(_MOST_INNER):
        if not isinstance(value, Mapping):
            break
        for form in _FORMS:
            if (answer := form(value)) is not None:
                return answer
        inner = (decoded(value.get(name)) for name in _INNER)
        value = next((item for item in inner if isinstance(item, Mapping)), None)
    if isinstance(given, list):
        return Answered(given)  # parts of a content, or nothing
    raise UnusableAnswer("an answer of no known form")


def _is_of_a_server(value: Any) -> bool:
    """Whether a text that is JSON is what a server gave, and not what its target wrote: by keys that state how the answer ended,
    or who speaks, which a target's own object has together by no chance that a log would show."""
    for _ in range(_MOST_INNER):
        if not isinstance(value, Mapping):
            return False
        choices = decoded(value.get("choices"))
        first = decoded(choices[0]) if isinstance(choices, list) and choices else {}
        if isinstance(first, Mapping) and "finish_reason" in first and ("message" in first or "text" in first):
            return True
        if value.get("role") == "assistant" and ("content" in value or "tool_calls" in value):
            return True
        if any(names <= value.keys() for names in _OF_SERVERS) or value.get("object") == "response":
            return True
        inner = (decoded(value.get(name)) for name in _INNER)
        value = next((item for item in inner if isinstance(item, Mapping)), None)
    return False


def _openai(value: Mapping[str, Any]) -> Answered | None:
    if "choices" not in value:
        return None
    choices = decoded(value["choices"])
    first = decoded(choices[0]) if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping):
        raise UnusableAnswer("no answer")
    if "finish_reason" in first and first["finish_reason"] is None:
        raise UnusableAnswer("broken off, with finish_reason null")
    facts = {**value, **first, "choices": choices}  # of several that were sampled, any one is a sample
    completes = "message" not in first and "text" in first
    said = first.get("text") if completes else _message_within(first.get("message"))
    return Answered(said, _stopped(first.get("finish_reason"), facts), facts, completes)


def _responses(value: Mapping[str, Any]) -> Answered | None:
    items = decoded(value.get("output"))
    if not isinstance(items, list) or ("status" not in value and value.get("object") != "response"):
        return None
    parts = [part for item in items if isinstance(item, Mapping) for part in _parts_of_response(item)]
    details = value.get("incomplete_details")
    word = details.get("reason") if isinstance(details, Mapping) else value.get("status")
    message = _joined(parts)
    reason = reason_of(word)
    return Answered(message, CALLS if reason == STOP and message.get("tool_calls") else reason, value)


def _parts_of_response(item: Mapping[str, Any]) -> list[tuple[str, Any]]:
    kind, content = item.get("type"), item.get("content")
    if kind == "function_call":
        return [("call", {"id": item.get("call_id"), "name": item.get("name"), "arguments": item.get("arguments")})]
    texts = {"reasoning": ("thinking", "reasoning_text"), "message": ("text", "output_text")}.get(str(kind))
    if texts is None or not isinstance(content, list) or not content:
        raise UnusableAnswer(f"an answer with {str(kind)[:20]} that is not in it")
    if not all(isinstance(part, Mapping) and part.get("type") == texts[1] for part in content):
        raise UnusableAnswer("an answer with parts that are no text")
    return [(texts[0], part.get("text")) for part in content]


def _anthropic(value: Mapping[str, Any]) -> Answered | None:
    blocks = decoded(value.get("content"))
    if not isinstance(blocks, list) or ("stop_reason" not in value and value.get("type") != "message"):
        return None
    parts: list[tuple[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            call = {"id": block.get("id"), "name": block.get("name"), "arguments": block.get("input")}
            parts.append(("call", call))
        elif kind in ("text", "thinking"):
            parts.append((kind, block.get(kind)))
        else:
            raise UnusableAnswer("an answer with parts that are no text")
    return Answered(_joined(parts), reason_of(value.get("stop_reason")), {"usage": value.get("usage")})


def _joined(parts: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A message of OpenAI's chat. Its parts have an order there: thinking, text, calls."""
    order = ["thinking", "text", "call"]
    places = [order.index(kind) for kind, _ in parts]
    if places != sorted(places):
        raise UnusableAnswer("an answer whose parts are in another order than a chat template's")
    texts = {kind: [item for of, item in parts if of == kind] for kind in order}
    if not all(isinstance(item, str) for item in (*texts["thinking"], *texts["text"])):
        raise UnusableAnswer("no text")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts["text"])}
    if texts["thinking"]:
        message["reasoning_content"] = "".join(texts["thinking"])
    if texts["call"]:
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in texts["call"]
        ]
    return message


def _sglang(value: Mapping[str, Any]) -> Answered | None:
    about = decoded(value.get("meta_info"))
    if not isinstance(about, Mapping) or ("text" not in value and "output_ids" not in value):
        return None
    ended = about.get("finish_reason")
    ended = ended if isinstance(ended, Mapping) else {"type": ended}
    facts = {**value, "token_ids": value.get("output_ids"), "usage": about, "matched_stop": ended.get("matched")}
    return Answered(value.get("text", ""), _stopped(ended.get("type"), facts), facts, completes=True)


def _llama_cpp(value: Mapping[str, Any]) -> Answered | None:
    older = {"eos": value.get("stopped_eos"), "limit": value.get("stopped_limit"), "word": value.get("stopped_word")}
    if "content" not in value or ("stop_type" not in value and all(number is None for number in older.values())):
        return None
    word = value.get("stop_type") or next((name for name, ended in older.items() if ended), None)
    word = None if word == "none" else word
    return Answered(value["content"], reason_of(word), {"token_ids": value.get("tokens")}, completes=True)


def _tgi(value: Mapping[str, Any]) -> Answered | None:
    if "generated_text" not in value:
        return None
    details = decoded(value.get("details"))
    details = details if isinstance(details, Mapping) else {}
    tokens = details.get("tokens")
    ids = (
        [token.get("id") if isinstance(token, Mapping) else None for token in tokens]
        if isinstance(tokens, list)
        else None
    )
    reason = reason_of(details.get("finish_reason"))
    return Answered(value["generated_text"], reason, {"token_ids": ids}, completes=True)


def _ollama(value: Mapping[str, Any]) -> Answered | None:
    if "done" not in value or ("message" not in value and "response" not in value):
        return None
    if not value["done"]:
        raise UnusableAnswer("broken off, with done false")
    message = _message_within(value["message"]) if "message" in value else value["response"]
    if isinstance(message, Mapping) and isinstance(message.get("thinking"), str):
        message = {**message, "reasoning_content": message["thinking"]}
    return Answered(message, reason_of(value.get("done_reason")))


def _message(value: Mapping[str, Any]) -> Answered | None:
    names = ("content", "tool_calls", "function_call", "reasoning", "reasoning_content")
    if not any(name in value for name in names) or value.get("role", "assistant") != "assistant":
        return None
    return Answered(value, ended(value))


_FORMS: tuple[Callable[[Mapping[str, Any]], Answered | None], ...] = (
    *(_openai, _responses, _sglang, _llama_cpp, _tgi, _ollama, _anthropic, _message),
)


def _message_within(value: Any) -> Any:
    message = decoded(value)
    return message if isinstance(message, Mapping) else value


def _stopped(word: Any, facts: Mapping[str, Any]) -> str | None:
    """The reason, where a server also states the stop string that it found."""
    has_stop_string = any(isinstance(facts.get(name), str) for name in ("stop_reason", "matched_stop"))
    return STOP_STRING if has_stop_string else reason_of(word)

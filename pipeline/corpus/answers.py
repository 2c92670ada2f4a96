"""The recorded answer of a row of a log. Handles the forms that logs have; has no tokenizer.

An answer that cannot be used exactly as the target gave it is not used: the target then answers the prompt again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.answer_forms import (
    CALLS,
    LENGTH,
    STOP,
    STOP_STRING,
    UnusableAnswer,
    ended,
    read_answer,
)
from pipeline.corpus.as_served import standard_role, with_arguments, with_thinking
from pipeline.corpus.chats import as_list, as_message
from pipeline.corpus.foreign_texts import is_cut
from pipeline.corpus.json_values import decoded
from pipeline.corpus.request_fields import LIMITS, NEUTRAL, STATED

SEVERAL = "several answers"
NO_REASON = "without a finish_reason, so that they may be cut off"
_LARGEST = 2**31 - 1
ANSWER_COLUMNS = ("finish_reason", "stop_reason", "matched_stop", *STATED, *LIMITS, *NEUTRAL)
"""Columns that are read beside the answer."""


@dataclass(frozen=True)
class LoggedAnswer:
    """What a row holds of the target's answer."""

    text: str  # empty where there are token ids
    cut: bool = False  # at a length limit, not at its end
    tokens: tuple[int, ...] | None = None  # where the log has token ids
    prompt_tokens: tuple[int, ...] | None = None  # those of the prompt, where the log has them
    stated: Mapping[str, float] = field(default_factory=dict)  # sampling settings that the row states
    completes: bool = False  # of the completions API, which applies no chat template
    message: Mapping[str, Any] | None = (
        None  # where thinking or tool calls were parsed out of the text: the template's input
    )
    redacted: bool = False  # the row's texts were; its token ids cannot be
    counted: int | None = None  # tokens of the answer, as the server counted them; None where it did not state it


def parse_answer(row: Mapping[str, Any], source: PromptSource) -> LoggedAnswer:
    """The answer in `source.answer_field`, else the last of the row's messages. UnusableAnswer states why there is none.

    It is in one of the forms of `answer_forms.py`. Without a reason of its end it may be cut off, and is not used.
    """
    given = row.get(source.answer_field)
    answer = read_answer(_last_message(row, source) if given is None else given)
    if given is not None and _begun(row, source, answer.said):
        raise UnusableAnswer("a request that ends with an assistant's message, which the answer may go on with")
    if changed := [name for name, values in NEUTRAL.items() if row.get(name) not in values]:
        raise UnusableAnswer(f"a request with {changed[0]}")
    tokens, prompt_tokens = _logged_ids(answer.facts)
    text, message = _said(answer.said) if tokens is None else ("", None)
    of_row = ended(row)
    reason = of_row if of_row == STOP_STRING else answer.reason or of_row or source.finish_reason
    if reason is None and tokens is None:  # ids show whether they end with a stop token
        raise UnusableAnswer(NO_REASON)
    return LoggedAnswer(
        text=text,
        cut=_is_cut(reason) or (reason == CALLS and _at_limit(answer.facts, row)),
        tokens=tokens,
        prompt_tokens=prompt_tokens,
        stated=stated_sampling(row),
        completes=answer.completes,
        message=message,
        redacted=source.redact,
        counted=_tokens_used(answer.facts),
    )


def stated_sampling(row: Mapping[str, Any]) -> dict[str, float]:
    """The sampling settings that a row states. UnusableAnswer for values that cannot be."""
    return {name: value for name in STATED if (value := _setting(row.get(name))) is not None}


def settings_text(stated: Mapping[str, float]) -> str:
    """The settings in words, for messages."""
    return ", ".join(f"{name} {value:g}" for name, value in stated.items())


def differing(stated: Mapping[str, float], sampling: Any) -> str:
    """The settings with which a request of a log was sampled, where they are not `sampling`, which has them as attributes; empty
    where they are. At temperature 0 the filters have no effect."""
    names = ("temperature",) if sampling.temperature == 0 else STATED
    other = {name: stated[name] for name in names if name in stated and stated[name] != getattr(sampling, name)}
    return f"sampled with {settings_text(other)}" if other else ""


def _setting(value: Any) -> float | None:
    """The setting; None where the row does not state it. A top_k of -1 means no top-k, as 0 does."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -1 <= value <= _LARGEST:  # NaN is in no interval
        raise UnusableAnswer("invalid sampling settings")
    return max(0.0, float(value))


def _last_message(row: Mapping[str, Any], source: PromptSource) -> Any:
    column = source.messages_field if row.get(source.messages_field) is not None else source.prompt_field
    messages = as_list(row.get(column))
    try:
        last = [as_message(message, source.roles) for message in messages[-2:]] if isinstance(messages, list) else []
    except (ValueError, TypeError, AttributeError):
        last = []
    if not last or standard_role(last[-1]["role"]) != "assistant":
        raise UnusableAnswer("no answer")
    if len(last) > 1 and standard_role(last[0]["role"]) == "assistant":
        raise UnusableAnswer(SEVERAL)
    return last[-1]


def _begun(row: Mapping[str, Any], source: PromptSource, said: Any) -> bool:
    """Whether the row's messages end with one of the assistant that is not the answer itself, which exports repeat there."""
    try:
        last = _last_message(row, source)
    except UnusableAnswer as why:
        return str(why) == SEVERAL
    own = said.get("content") if isinstance(said, Mapping) else said
    return bool(last.get("content")) and last.get("content") != own


def _said(said: Any) -> tuple[str, Mapping[str, Any] | None]:
    """The text of an answer; and where a server parsed thinking or tool calls out of it, the message that has them."""
    if not isinstance(said, Mapping):
        return _text(said), None
    calls = said.get("tool_calls") or ([{"function": call}] if (call := said.get("function_call")) else [])
    thinking = said.get("reasoning_content") or said.get("reasoning")
    if not calls and not thinking:
        return _text(said.get("content")), None
    content = "" if said.get("content") is None else _text(said["content"])
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        thinking = _text(thinking)
        message = with_thinking({**message, "reasoning": thinking, "thinking": thinking})  # gpt-oss's name
    if calls:
        message["tool_calls"] = _calls(calls)
    return content, message


def _calls(calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise UnusableAnswer("tool calls of an unknown form")
    for call in calls:
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UnusableAnswer("tool calls of an unknown form")
        if "\ufffd" in str(function.get("arguments")):
            raise UnusableAnswer("characters that were cut off")
    parsed = [with_arguments(call) for call in calls]
    if any(isinstance(call["function"].get("arguments"), str) for call in parsed):
        raise UnusableAnswer("tool calls with arguments that are not JSON")  # a template would quote them
    return parsed


def _text(content: Any) -> str:
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise UnusableAnswer("no text")
    if "\ufffd" in content:
        raise UnusableAnswer("characters that were cut off")
    if is_cut(content):
        raise UnusableAnswer("a text that a logger cut")
    return content


def _is_cut(reason: str | None) -> bool:
    if reason == STOP_STRING:
        raise UnusableAnswer(reason)
    if reason not in (None, STOP, LENGTH, CALLS):
        raise UnusableAnswer(f"finish_reason {str(reason)[:20]}")
    return reason == LENGTH


def _at_limit(answer: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether an answer has as many tokens as its request allowed: vLLM states calls as the reason of an end at the limit too."""
    limits = [row[name] for name in LIMITS if type(row.get(name)) is int]
    return bool(limits) and (_tokens_used(answer) or 0) >= limits[0]


def _tokens_used(answer: Mapping[str, Any]) -> int | None:
    """The tokens as the server counted them; None where it did not state it, or for several choices together."""
    usage, choices = decoded(answer.get("usage")), answer.get("choices")
    usage = usage if isinstance(usage, Mapping) else {}
    used = usage.get("completion_tokens", usage.get("output_tokens"))
    return used if type(used) is int and (not isinstance(choices, list) or len(choices) == 1) else None


def _logged_ids(answer: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The token ids of an answer and of its prompt, where the server gave them. UnusableAnswer if some are missing."""
    sglang, llama_cpp, litellm = (
        part if isinstance(part := answer.get(name), Mapping) else {}
        for name in ("sglext", "__verbose", "provider_specific_fields")
    )
    output = sglang.get("output_ids")
    tokens = _first_ids(
        answer.get("token_ids"),
        answer.get("response_token_ids"),
        output[0] if isinstance(output, list) and output else None,
        llama_cpp.get("tokens"),
        litellm.get("token_ids"),
    )
    used = _tokens_used(answer)
    if tokens is not None and used is not None and len(tokens) < used:  # a gateway has dropped parts of a stream
        raise UnusableAnswer("token ids that are not all of usage.completion_tokens")
    return tokens, _first_ids(answer.get("prompt_token_ids"), sglang.get("input_ids"))


def _first_ids(*values: Any) -> tuple[int, ...] | None:
    return next((ids for value in values if (ids := _ids(value)) is not None), None)


def _ids(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value:
        return None
    if not all(type(token) is int and 0 <= token <= _LARGEST for token in value):
        raise UnusableAnswer("invalid token ids")
    return tuple(value)

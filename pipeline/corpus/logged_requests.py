"""The request of a row: a log has its fields in the row itself, or under a key of their own. Pure.

Under a key of its own a request says only what requests say: a client that sends `domain`, `group` or `created` labels nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.corpus.json_values import decoded

REQUEST = "request"  # the column of the request, as docs/examples/request_log.py writes it
_WRAPPERS = ("body", "params", "input")  # of batch files and exports, looked into where a file has no prompt column
STATED = ("temperature", "top_k", "top_p", "min_p")
# Settings of a request that change what is sampled, by the values that change nothing. The target is never asked with them.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "repeat_penalty": (None, 1),
    "logit_bias": (None, {}, []),
    "stop": (None, "", []),
    # Engines sample under a grammar, as they do where a tool must be called.
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_grammar": (None,),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "grammar": (None, ""),
    "tool_choice": (None, "auto", "none"),
    "parallel_tool_calls": (None, True),
    "stop_token_ids": (None, []),
    "ignore_eos": (None, False),
    "min_tokens": (None, 0),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "thinking_token_budget": (None,),
    # The answer begins within a message.
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    # The target has thought, and the answer does not show it.
    "include_reasoning": (None, True),
}
_FIELDS = ("messages", "prompt", "input", "tools", "chat_template_kwargs", "system", "instructions")
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_TAKEN = (*_FIELDS, *LIMITS, *STATED, *NEUTRAL)


def request_column(rows: Sequence[Any], prompts: Sequence[str], wanted: str | None) -> str | None:
    """The column of the requests of `rows`, the first of a source: `wanted`, else one that batch files have. None where rows have
    their prompts (`prompts`: the columns of those) in the row itself."""
    for row in rows:
        if isinstance(row, Mapping) and all(row.get(name) is None for name in prompts):
            for name in (*([wanted] if wanted else []), *_WRAPPERS):
                if _request_of(row.get(name)) is not None:
                    return name
    return None


def with_request(row: Any, prompts: Sequence[str], column: str | None) -> Any:
    """`row` with the fields of the request in its `column`, in place of that column; rows that have a prompt themselves, or no
    such request, as they are."""
    if column is None or not isinstance(row, Mapping) or any(row.get(name) is not None for name in prompts):
        return row
    request = _request_of(row.get(column))
    if request is None:
        return row
    own = {name: item for name, item in row.items() if name != column}
    return {**own, **{name: request[name] for name in _TAKEN if name in request}}


def _request_of(value: Any) -> Mapping[str, Any] | None:
    """An object with a prompt, or its JSON text."""
    value = decoded(value)
    if not isinstance(value, Mapping):
        return None
    has_prompt = any(
        isinstance(value.get(name), str | list) and value[name] for name in ("messages", "prompt", "input")
    )
    return value if has_prompt else None

"""The request of a row: a log has its fields in the row itself, or under a key of their own. Pure.

Under a key of its own a request states only what requests state: a client that sends `domain`, `group` or `created` labels
nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.corpus.json_values import decoded
from pipeline.corpus.nested_settings import with_settings
from pipeline.corpus.request_fields import (
    DOCUMENTS,
    EFFORT,
    REFUSED_UNDER_KEY,
    SETTINGS,
    SYSTEMS,
    TAKEN,
    is_known,
    refusal,
)
from pipeline.corpus.rows import BadRow
from pipeline.store.json_text import json_kind

REQUEST = "request"  # the column of the request, as docs/examples/request_log.py writes it
_WRAPPERS = ("body", "params", "input")  # of batch files and exports, looked into where a file has no prompt column


def request_column(rows: Sequence[Any], prompts: Sequence[str], wanted: str | None) -> str | None:
    """The column of the requests of `rows`, the first of a source: `wanted`, else one that batch files have. None where rows have
    their prompts (`prompts`: the columns of those) in the row itself."""
    for row in rows:
        if isinstance(row, Mapping) and not _has_prompt(row, prompts):
            for name in (*([wanted] if wanted else []), *_WRAPPERS, *prompts):
                if _request_of(row.get(name)) is not None:
                    return name
    return None


def with_request(row: Any, prompts: Sequence[str], column: str | None, unknown: Counter[str] | None = None) -> Any:
    """`row` with the fields of the request in its `column`, in place of that column; rows that have a prompt themselves, or no
    such request, as they are. A BadRow where a field makes another prompt. `unknown` counts fields that are in no table."""
    if not isinstance(row, Mapping):
        return row
    request = None if column is None or _has_prompt(row, prompts) else _request_of(row.get(column))
    if request is None:
        return with_settings(row, SETTINGS)
    request = with_settings(request, SETTINGS)
    if unknown is not None:
        unknown.update(name for name, item in request.items() if item is not None and not is_known(name))
    if (reason := refusal(request, REFUSED_UNDER_KEY)) is not None:
        return BadRow(f"request with {reason[0]}", reason[1])
    own = with_settings({name: item for name, item in row.items() if name != column}, SETTINGS)
    try:
        request = _with_documents(_with_effort(_with_system(request)))
    except ValueError as why:
        return BadRow("bad request", str(why))
    return {**own, **{name: request[name] for name in TAKEN if name in request}}


def _with_system(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with Anthropic's `system`, or `instructions` of Responses, as the first message."""
    for name in SYSTEMS:
        column = "messages" if request.get("messages") else "input"
        system, asked = decoded(request.get(name)), decoded(request.get(column))
        if not system or not asked:
            continue
        if not isinstance(system, str | list):
            raise ValueError(f"`{name}` is {json_kind(system)}, not text")
        asked = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        request = {**request, column: [{"role": "system", "content": system}, *asked]}
    return request


def _with_effort(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with the effort that Responses state in `reasoning`. Of chats, it is a field of one engine only."""
    reasoning = decoded(request.get("reasoning"))
    if "messages" in request or not isinstance(reasoning, Mapping) or reasoning.get("effort") is None:
        return request
    return {**request, EFFORT: reasoning["effort"]}


def _with_documents(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with `documents` among the arguments of the chat template, as vLLM has them. The template may not read them."""
    documents, stated = decoded(request.get(DOCUMENTS)), decoded(request.get("chat_template_kwargs"))
    if not documents:
        return request
    if not isinstance(documents, list) or not all(isinstance(document, Mapping) for document in documents):
        raise ValueError(f"`{DOCUMENTS}` is not a list of objects")
    stated = stated if isinstance(stated, Mapping) else {}
    return {**request, "chat_template_kwargs": {**stated, DOCUMENTS: documents}}


def _request_of(value: Any) -> Mapping[str, Any] | None:
    """An object with a prompt, or its JSON text; or the `body` of one, as gateways log it."""
    value = decoded(value)
    for inner in (value, decoded(value.get("body")) if isinstance(value, Mapping) else None):
        if isinstance(inner, Mapping) and any(
            isinstance(inner.get(name), str | list) and inner[name] for name in ("messages", "prompt", "input")
        ):
            return inner
    return None


def _has_prompt(row: Mapping[str, Any], prompts: Sequence[str]) -> bool:
    """Whether the row holds a prompt itself: a text, a chat or turns, and no request with its messages."""
    return any(row.get(name) is not None and not _is_request(row[name]) for name in prompts)


def _is_request(value: Any) -> bool:
    value = decoded(value)
    return isinstance(value, Mapping) and isinstance(decoded(value.get("messages")), list)

"""The rows of a session with several recorded answers: one row for each answer, which is its last message. Pure.

For `corpus.sources[].every_answer`. What stands before an answer, tool results included, is its prompt. Whether thinking of
earlier answers is a part of that prompt is up to the chat template.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.corpus.as_served import standard_role
from pipeline.corpus.chats import as_list, as_message
from pipeline.corpus.request_counts import COUNT_COLUMNS


def rows_by_answer(value: Any, source: PromptSource) -> list[Any]:
    """`value`, and before it the same row up to each of its earlier answers. Only `value` without `every_answer`, or for a row
    that holds no chat.

    What the row states of its answer (the answer's column, its finish reason, counts of its request) is of the last one. Answers
    before the first question, such as a greeting, are nobody's.
    """
    if not source.every_answer or not isinstance(value, Mapping):
        return [value]
    column = source.messages_field if value.get(source.prompt_field) is None else source.prompt_field
    messages = as_list(value.get(column))
    if not isinstance(messages, list):
        return [value]
    roles = [_role(message, source.roles) for message in messages]
    of_last = {source.answer_field, "finish_reason", "stop_reason", *COUNT_COLUMNS}
    row = {name: item for name, item in value.items() if name not in of_last}
    ends = [
        end
        for end, (role, following) in enumerate(pairwise(roles), start=1)
        if role == "assistant" != following and any(before not in ("system", "assistant") for before in roles[:end])
    ]
    return [*({**row, column: messages[:end]} for end in ends), value]


def _role(message: Any, roles: Mapping[str, str]) -> Any:
    try:
        return standard_role(as_message(message, roles)["role"]) if isinstance(message, Mapping) else None
    except ValueError:
        return None

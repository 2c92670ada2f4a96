"""What a row states beside its messages and the chat template needs. Every turn of its chat is rendered with it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RowFacts:
    """What is known of a row beside its prompt. `time`: of the row, in seconds since 1970; None where it is not known. `longest`:
    tokens to which the server would have cut the prompt; None for no such limit."""

    tools: tuple[Mapping[str, Any], ...] = ()  # function schemas, which the chat template renders
    arguments: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the chat template, as the source or the row states them
    time: float | None = None
    roles: tuple[str, ...] = ()  # that the source, or the template's own branches, name as known
    longest: int | None = None


NO_FACTS = RowFacts()

"""Columns that a config or an option names and no row has: a misspelled one would change what is read without a word. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from pipeline.config.corpus import PromptSource
from pipeline.escaping.nearest import did_you_mean
from pipeline.escaping.terminal import printable

_KEYS = (
    *("prompt_field", "input_field", "system_field", "messages_field", "turns_field", "domain_field", "group_field"),
    *("tools_field", "arguments_field", "time_field"),
)
_SHOWN = 12


class NamedColumns:
    """The columns that `source` names otherwise than by default, until a row with a value in them is seen. `source` is as it was
    given, before its columns were recognised."""

    def __init__(self, source: PromptSource) -> None:
        fields = PromptSource.model_fields
        self._unseen = {
            key: str(value)
            for key in _KEYS
            if (value := getattr(source, key)) is not None and value != fields[key].default
        }
        if source.domain is not None:  # it is that of every row
            self._unseen.pop("domain_field", None)

    def see(self, row: Any) -> None:
        """Take note of a row as it was read."""
        if self._unseen and isinstance(row, Mapping):
            self._unseen = {key: column for key, column in self._unseen.items() if row.get(column) is None}

    def missing(self, others: Collection[str]) -> dict[str, str]:
        """What no row has, in words by key of the source. `others`: the columns that there are."""
        shown = printable(", ".join(list(others)[:_SHOWN])) or "(none)"
        return {
            key: f"no row has a value in the column '{printable(column)}'; other columns are {shown}"
            f"{did_you_mean(column, others)}"
            for key, column in self._unseen.items()
        }

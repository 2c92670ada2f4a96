"""The base of every config section: frozen, and unknown keys are errors. Does not import torch."""

import types
import typing
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

MOST = 2**31 - 1  # of a whole number: more of anything is a mistake, and ends in the arithmetic of a library


class Section(BaseModel):
    """A part of the configuration. Immutable; an unknown key is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _flag_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `yes` and `on` as true, which pydantic takes for 1."""
        if type(value) is bool and info.field_name is not None:
            allowed = set(_types(cls.model_fields[info.field_name].annotation))
            if bool not in allowed and allowed & {int, float}:
                raise ValueError(f"expected a number, not {str(value).lower()}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _whole_numbers_are_countable(cls, value: Any, info: ValidationInfo) -> Any:
        if type(value) is int and abs(value) > MOST and info.field_name != "seed":
            raise ValueError(f"{value} is too large; at most {MOST:,}")
        return value


def _types(annotation: Any) -> list[Any]:
    """The members of a union, or the type itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return list(typing.get_args(annotation))
    return [annotation]

"""Parses the content of machine-written JSON files into dataclasses, with pydantic. Types are strict: text is not a number."""

from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from pipeline.errors import printable

_MOST = 2**53  # whole numbers up to here are exact as floats

Text = StrictStr
Count = Annotated[int, Field(strict=True, ge=0, lt=_MOST)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=-_MOST, lt=_MOST)]

# For a dataclass's `__pydantic_config__`: an unknown field is an error.
KNOWN_FIELDS_ONLY = ConfigDict(extra="forbid")

T = TypeVar("T")


def parse(adapter: TypeAdapter[T], raw: Any) -> T:
    """`raw` as the adapter's type. ValueError names the first place that is wrong, in one line."""
    try:
        return adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = printable(".".join(map(str, first["loc"])))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None

"""Parses the content of machine-written JSON files into dataclasses, with pydantic. Types are strict: text is not a number."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, TypeAdapter, ValidationError

from pipeline.errors import UnderstudyError
from pipeline.escaping.terminal import printable

_MOST = 2**53  # whole numbers up to here are exact as floats

Text = StrictStr
Flag = StrictBool
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, lt=_MOST)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=-_MOST, lt=_MOST)]


def _key_of_json(key: Any) -> Any:
    """The number that the key of a JSON object spells as `json.dumps` does. Not True, ` 5 `, 05 or 1_0, which int() takes."""
    if isinstance(key, str) and key.isascii() and key.isdecimal() and str(int(key[:17])) == key:
        return int(key)
    if type(key) is int:
        return key
    raise ValueError("not a whole number")


CountKey = Annotated[int, BeforeValidator(_key_of_json), Field(ge=0, lt=_MOST)]  # text in JSON

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


@dataclass(frozen=True, kw_only=True)
class Format(Generic[T]):
    """A kind of machine-written JSON file, whose field `schema` says which version of the format it is in."""

    name: str  # for messages
    schema: int
    remedy: str  # what to do about a file that cannot be read
    content: TypeAdapter[T]

    def parse(self, raw: Any, where: str) -> T:
        """UnderstudyError naming `where` for a file of another schema, or the first field that is wrong."""
        found = raw.get("schema") if isinstance(raw, dict) else None
        if type(found) is not int or found != self.schema:
            raise UnderstudyError(
                f"{where}: the {self.name} has schema {found!r}, and this version reads schema {self.schema}; {self.remedy}"
            )
        try:
            return parse(self.content, raw)
        except ValueError as error:
            raise UnderstudyError(f"{where}: not a complete {self.name} ({error}); {self.remedy}") from None

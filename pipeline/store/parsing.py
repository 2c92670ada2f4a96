"""Reads JSON files into dataclasses, with pydantic. Types are strict: text is not a number."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, TypeAdapter, ValidationError

from pipeline.errors import UnderstudyError
from pipeline.escaping.terminal import printable
from pipeline.store.json_text import parse_json, read_text

_MOST = 2**53  # whole numbers up to here are exact as floats

Text = StrictStr
Flag = StrictBool
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, lt=_MOST)]
SmallWhole = Annotated[Whole, Field(gt=-_MOST, lt=_MOST)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=-_MOST, lt=_MOST)]
Positive = Annotated[Number, Field(ge=0)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # of any size
Amount = Annotated[Finite, Field(ge=0)]
Moment = Annotated[Finite, Field(ge=0, lt=10**11)]  # Unix seconds


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

_OBJECTS = ("dict_type", "model_type", "dataclass_type", "model_attributes_type")  # errors of pydantic
T = TypeVar("T")


def parse(adapter: TypeAdapter[T], raw: Any) -> T:
    """`raw` as the adapter's type. ValueError names the first place that is wrong, in one line."""
    try:
        return adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = printable(".".join(map(str, first["loc"])))
        what = "should be an object" if first["type"] in _OBJECTS else first["msg"]
        raise ValueError(f"{place}: {what}" if place else what) from None


@dataclass(frozen=True, kw_only=True)
class Format(Generic[T]):
    """A kind of JSON file: what it holds, and what to do about one that cannot be used. Every file that a user or another program
    could have changed has one, and stands in the list of `tests/unit/readers`."""

    name: str  # for messages
    content: TypeAdapter[T]
    schema: int | None = None  # what its field `schema` must be; None for a file without one
    remedy: str = "delete it and run again"
    foreign: bool = False  # another program's: see `parse_json`
    error: type[UnderstudyError] = UnderstudyError
    check: Callable[[T], None] = lambda found: None  # ValueError for fields that contradict each other

    def read(self, path: Path) -> T:
        """The content of `path`. UnderstudyError of one line: a file that is missing, damaged or of another schema, or the first
        field that is wrong."""
        return self.parse(self.read_raw(path), str(path))

    def find(self, path: Path) -> T | None:
        """As `read`; None where there is nothing at `path`. A link to nowhere is something."""
        return self.read(path) if os.path.lexists(path) else None

    def read_raw(self, path: Path) -> Any:
        """The parsed JSON. Raises as `read`."""
        with self.naming(path):
            return parse_json(read_text(path), foreign=self.foreign)

    @contextlib.contextmanager
    def naming(self, path: Path) -> Iterator[None]:
        """OSError and ValueError of reading `path` become an UnderstudyError that names it."""
        try:
            yield
        except FileNotFoundError:
            raise self.error(f"{path}: no such file") from None
        except OSError as error:
            raise self.error(f"{path}: {error.strerror or error}; {self.remedy}") from None
        except ValueError as error:
            raise self.error(f"{path}: damaged ({error}); {self.remedy}") from None

    def parse(self, raw: Any, where: str) -> T:
        """As `read`, of a value; `where` names it."""
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if self.schema is not None and (type(schema) is not int or schema != self.schema):
            raise self.error(
                f"{where}: the {self.name} has schema {printable(repr(schema)[:80])}, and this version reads schema "
                f"{self.schema}; {self.remedy}"
            )
        try:
            found = parse(self.content, raw)
            self.check(found)
            return found
        except ValueError as error:
            raise self.error(f"{where}: not a complete {self.name} ({error}); {self.remedy}") from None

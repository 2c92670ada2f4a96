"""Reads JSON files into dataclasses, with pydantic. Types are strict: text is not a number.

`@stored` makes the dataclass of a file, or of a part of one. Each kind of file is declared once, where its content is.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, dataclass_transform, overload

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
    with_config,
)

from pipeline.errors import UnderstudyError
from pipeline.escaping.terminal import printable
from pipeline.store.json_text import MOST_BYTES, parse_json, read_text

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

_KNOWN_FIELDS_ONLY = ConfigDict(extra="forbid")
known_fields_only = with_config(_KNOWN_FIELDS_ONLY)  # of a TypedDict in a file: what `stored` is for a dataclass
_REMEDY = "delete it and run again"

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
    content: type[T]
    schema: int | None = None  # what its field `schema` must be; None for a file without one
    remedy: str = _REMEDY
    foreign: bool = False  # another program's: see `parse_json`
    error: type[UnderstudyError] = UnderstudyError
    most_bytes: int = MOST_BYTES
    check: Callable[[T], None] = lambda content: None  # ValueError for fields that contradict each other

    @cached_property
    def adapter(self) -> TypeAdapter[T]:
        """Made when a file is first read, because that takes milliseconds."""
        return TypeAdapter(self.content)

    def read(self, path: Path) -> T:
        """The content of `path`. UnderstudyError of one line: a file that is missing, damaged or of another schema, or the first
        field that is wrong."""
        return self.parse(self.read_raw(path), str(path))

    def find(self, path: Path) -> T | None:
        """The content, as by `read`; None where there is nothing at `path`. A link to nowhere is something."""
        return self.read(path) if os.path.lexists(path) else None

    def read_raw(self, path: Path) -> Any:
        """The parsed JSON. Raises as `read`."""
        with self.naming(path):
            return parse_json(read_text(path, self.most_bytes), foreign=self.foreign)

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
        """The content, as by `read`, of a value; `where` names it."""
        schema = raw.get("schema") if isinstance(raw, dict) else None
        if self.schema is not None and (type(schema) is not int or schema != self.schema):
            raise self.error(
                f"{where}: the {self.name} has schema {printable(repr(schema)[:80])}, and this version reads schema "
                f"{self.schema}; {self.remedy}"
            )
        try:
            content = parse(self.adapter, raw)
            self.check(content)
            return content
        except ValueError as error:
            raise self.error(f"{where}: not a complete {self.name} ({error}); {self.remedy}") from None


@overload
def stored(cls: type[T], /) -> type[T]: ...


@overload
def stored(
    *,
    frozen: bool = True,
    kw_only: bool = True,
    name: str = "",
    schema: int | None = None,
    remedy: str = _REMEDY,
    error: type[UnderstudyError] = UnderstudyError,
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def stored(
    cls: type[Any] | None = None,
    /,
    *,
    frozen: bool = True,
    kw_only: bool = True,
    name: str = "",
    schema: int | None = None,
    remedy: str = _REMEDY,
    error: type[UnderstudyError] = UnderstudyError,
) -> Any:
    """A dataclass that is read from a file: frozen, keyword-only, and an unknown field is an error. With a `name` it is the whole
    content of a kind of file (`format_of`), and with a `schema` the file has it in a field `schema`."""

    def made(cls: type[T]) -> type[T]:
        cls.__pydantic_config__ = _KNOWN_FIELDS_ONLY  # type: ignore[attr-defined]  # how pydantic gets it
        if schema is not None:
            cls.__annotations__ = {**inspect.get_annotations(cls), "schema": int}
            cls.schema = schema  # type: ignore[attr-defined]
        made_class = dataclass(frozen=frozen, kw_only=kw_only)(cls)
        if name:
            kind = Format(name=name, content=made_class, schema=schema, remedy=remedy, error=error)
            made_class.__format_of_file__ = kind  # type: ignore[attr-defined]
        return made_class

    return made if cls is None else made(cls)


def format_of(content: type[T], check: Callable[[T], None] | None = None) -> Format[T]:
    """The kind of file whose content is this `@stored` class. `check`: see `Format`."""
    kind: Format[T] = content.__dict__["__format_of_file__"]
    return kind if check is None else replace(kind, check=check)

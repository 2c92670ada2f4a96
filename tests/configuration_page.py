"""docs/configuration.md, made from the config models: `python -m tests.configuration_page`, which `make docs` calls."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pipeline.config.loading import section_within
from pipeline.config.root import Config
from pipeline.progress import say_block

_HEAD = """# Configuration

A config is a YAML file. `--set key.path=value` overrides a key (precedence: defaults < file < `--set`). An unknown key is an
error. Paths are relative to the config file. `understudy init` writes a config to start from. This page is made from the models
in `pipeline/config/` by `make docs`.
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "\n".join(_section(Config, "", "Top level")) + "\n"


def _section(model: type[BaseModel], path: str, title: str) -> Iterator[str]:
    yield f"\n## {title}\n"
    if path:
        yield f"{' '.join((model.__doc__ or '').split())}\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|"
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        section = section_within(field.annotation)
        key = f"{path}{name}"
        if section is not None:
            listed = ".N" if "tuple" in str(field.annotation) else ""
            inner.append((section, f"{key}{listed}."))
        default = _default(field.default) if field.default_factory is None else "-"
        meaning = field.description or "see below"
        yield f"| `{key}` | {_type(field.annotation)} | {'see below' if section and default != 'null' else default} | {meaning} |"
    for section, prefix in inner:
        yield from _section(section, prefix, f"`{prefix.rstrip('.')}`")


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return "`null`" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(annotation: Any) -> str:
    if section_within(annotation) is not None:
        return "list of sections" if "tuple" in str(annotation) else "section"
    return _spelled(annotation)


def _spelled(annotation: Any) -> str:
    """A type as a reader of YAML has it; without bounds, which the descriptions name."""
    origin, parts = get_origin(annotation), [_spelled(part) for part in get_args(annotation) if part is not Ellipsis]
    if origin is Literal:
        return f"one of {list(get_args(annotation))}"
    if origin is Annotated:
        return _spelled(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return " or ".join(parts)
    if origin is not None:
        return f"{'list of ' if origin is tuple else origin.__name__}[{', '.join(parts)}]"
    if annotation in (None, NoneType):
        return "null"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


if __name__ == "__main__":
    say_block(page())

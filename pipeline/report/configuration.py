"""The reference of every config key as Markdown, made from the config models. `make docs` writes docs/configuration.md."""

import re
from collections.abc import Iterator
from typing import Any

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


def render() -> str:
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


_BOUNDS = re.compile(
    r"(?:typing\.)?Annotated\[(\w+), FieldInfo\([^\n]*?\)\]\)\]"
)  # what pydantic adds to an item's type


def _type(annotation: Any) -> str:
    if section_within(annotation) is not None:
        return "list of sections" if "tuple" in str(annotation) else "section"
    text = annotation.__name__ if isinstance(annotation, type) else _BOUNDS.sub(r"\1", str(annotation))
    text = text.replace("typing.", "").replace("Literal", "one of ").replace("NoneType", "null").replace("None", "null")
    return text.replace("|", "or").replace("tuple[", "list of [").replace(", ...]", "]")


if __name__ == "__main__":
    say_block(render())

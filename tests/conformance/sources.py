"""What the Python sources of an engine declare, read without importing them: they need GPUs and packages that are not here."""

import ast
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def source(variable: str) -> Path:
    """The directory of a package that an environment variable names; skips where it is not set."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: it names the directory of the engine's package (docs/conformance.md)")
    return Path(os.environ[variable])


@dataclass(frozen=True)
class Declared:
    """A field of a class: `name: annotation = default`, as source code."""

    annotation: str
    default: str | None
    node: ast.AnnAssign


def fields_of(path: Path, *classes: str) -> dict[str, Declared]:
    """The fields of the named classes of a file, or of all; later classes win."""
    found = {}
    for one in ast.parse(path.read_text()).body:
        if isinstance(one, ast.ClassDef) and (one.name in classes or not classes):
            for field in one.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    default = None if field.value is None else ast.unparse(field.value)
                    found[field.target.id] = Declared(ast.unparse(field.annotation), default, field)
    missing = [name for name in classes if f"class {name}" not in path.read_text()]
    assert not missing, f"{path} has no class {missing[0]}"
    return found


def strings_of(path: Path) -> set[str]:
    """All string constants of a file."""
    return {one.value for one in ast.walk(ast.parse(path.read_text())) if _is_string(one)}  # type: ignore[attr-defined]


def lists_of(path: Path) -> dict[str, list[str]]:
    """The lists of strings that a file assigns to names."""
    found = {}
    for one in ast.parse(path.read_text()).body:
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.List):
            found[one.targets[0].id] = [str(each.value) for each in one.value.elts if isinstance(each, ast.Constant)]
    return found


def function_of(path: Path, name: str, **known: Any) -> Callable[..., Any]:
    """A function or method of a file, to be called: its own code, with `known` in place of what it uses. Annotations are left
    out."""
    (found,) = (
        one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef) and one.name == name
    )
    for part in ast.walk(found):
        if isinstance(part, ast.arg):
            part.annotation = None
    found.returns, found.decorator_list = None, []
    exec(compile(ast.Module([found], []), str(path), "exec"), known)
    called: Callable[..., Any] = known[name]
    return called


def module_of(path: Path, monkeypatch: pytest.MonkeyPatch, parts: Mapping[str, Mapping[str, Any]]) -> Any:
    """A file of an engine as a module, with `parts`, the contents of modules by name, in the place of what it imports."""
    for name, content in parts.items():
        part = ModuleType(name)
        vars(part).update(content)
        monkeypatch.setitem(sys.modules, name, part)
    spec = importlib.util.spec_from_file_location(f"engine_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def _is_string(one: ast.AST) -> bool:
    return isinstance(one, ast.Constant) and isinstance(one.value, str)

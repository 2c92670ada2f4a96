"""Where the source reads files and answers: calls that open or parse one, and formats of files, found in its syntax.

`@reads_own_files("why")` exempts a function, a method or a class.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pipeline
import stages
from tests.structure import tree

ROOTS = (Path(pipeline.__file__).parent, Path(stages.__file__).parent)
MECHANISM = ("pipeline/store/json_text.py", "pipeline/store/parsing.py", "pipeline/store/files.py")

# Names that are called to parse, of functions and methods. `Format` makes a reader of files, as does `stored` with a name.
PARSERS = {
    "Format", "parse_json", "parse_element",
    "raw_decode", "JSONDecoder", "read_user_json", "read_text", "read_bytes", "regular_file", "read_head",
    "read_listed_rows",
    "safe_load", "safe_load_all", "literal_eval", "safe_open", "load_file", "unpack", "unpack_from", "DictReader",
    "ParquetFile", "read_metadata", "read_table", "load_from_disk", "open_file", "open_stream", "memmap", "from_pretrained",
    "fromfile", "loadtxt", "genfromtxt", "read_csv", "read_parquet", "load_dataset", "model_validate_json", "validate_json",
}  # fmt: skip
_LOOKED_AT = (ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OTHER_PARSERS = {"orjson", "ujson", "simplejson", "rapidjson", "json5", "msgspec", "demjson3"}
# Of these modules, also the short names.
OF_MODULES = {"json": {"load", "loads"}, "yaml": {"load", "load_all", "full_load"}, "np": {"load"}, "torch": {"load"},
              "csv": {"reader"}, "gzip": {"open"}, "bz2": {"open"}, "lzma": {"open"},
              "tomllib": {"load", "loads"}, "pickle": {"load", "loads"}, "configparser": {"ConfigParser"}}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """Calls that read, in one place: `module:function`, or `module:NAME` of an assignment."""

    place: str
    calls: frozenset[str]  # names
    exempt: bool  # by `@reads_own_files`


@cache
def sites() -> list[Site]:
    """All places that read, and all exemptions, also those that exempt nothing."""
    words = (
        PARSERS
        | {"stored(", "reads_own_files"}
        | {f"{of}.{name}" for of, names in OF_MODULES.items() for name in names}
    )
    found = []
    for module, syntax in _modules(words).items():
        if module not in MECHANISM:
            found += _sites(module.removesuffix(".py"), syntax)
    return found


def json_parsers() -> list[str]:
    """`file:line name` of every use of a JSON parser of another library or of Python's own, outside of json_text.py."""
    return [
        f"{module}:{node.lineno} {name}"
        for module, syntax in _modules({"import json", "from json", *_OTHER_PARSERS}).items()
        if module != MECHANISM[0]
        for node in ast.walk(syntax)
        for name in _json_names(node)
    ]


def _modules(words: Iterable[str]) -> dict[str, ast.Module]:
    """The syntax of each file that has one of these words; to parse all of them takes seconds."""
    any_word = re.compile("|".join(map(re.escape, words)))
    paths = [(root, path) for root in ROOTS for path in sorted(root.rglob("*.py"))]
    return {
        path.relative_to(root.parent).as_posix(): tree(path)
        for root, path in paths
        if any_word.search(path.read_text(encoding="utf-8"))
    }


def _json_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        parsers = [one.name for one in node.names if one.name not in ("dump", "dumps")]
        return parsers if node.module == "json" else [str(node.module)] if node.module in _OTHER_PARSERS else []
    if isinstance(node, ast.Import):
        return [one.name for one in node.names if one.name in _OTHER_PARSERS]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [node.attr] if node.value.id == "json" and node.attr not in ("dump", "dumps") else []
    return []


def _sites(module: str, syntax: ast.Module) -> Iterator[Site]:
    for statement in syntax.body:
        nodes = [node for node in ast.walk(statement) if isinstance(node, _LOOKED_AT)]
        exempt = [node for node in nodes if _is_exempt(node)]
        within = {id(inner) for node in exempt for inner in ast.walk(node)}
        for node in exempt:
            yield Site(f"{module}:{_name(node)}", _calls(ast.walk(node)), exempt=True)
        if calls := _calls(node for node in nodes if id(node) not in within):
            yield Site(f"{module}:{_name(statement)}", calls, exempt=False)


def _is_exempt(node: ast.AST) -> bool:
    """A definition with the decorator."""
    marks = getattr(node, "decorator_list", [])
    return any(isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "reads_own_files" for mark in marks)


def _calls(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(name for node in nodes if isinstance(node, ast.Call) and (name := _parser(node)))


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return ", ".join(target.id for target in targets if isinstance(target, ast.Name)) or "module"


def _parser(call: ast.Call) -> str | None:
    called = call.func
    if isinstance(called, ast.Name):
        if called.id == "stored" and any(given.arg == "name" for given in call.keywords):
            return "stored"
        return called.id if called.id in PARSERS else None
    if not isinstance(called, ast.Attribute):
        return None
    module = called.value.id if isinstance(called.value, ast.Name) else ""
    return called.attr if called.attr in PARSERS or called.attr in OF_MODULES.get(module, ()) else None

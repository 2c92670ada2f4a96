"""Where the source reads files and answers: calls that open or parse one, and formats of files, found in its syntax."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pipeline
import stages

ROOTS = (Path(pipeline.__file__).parent, Path(stages.__file__).parent)
MECHANISM = ("pipeline/store/json_text.py", "pipeline/store/parsing.py", "pipeline/store/files.py")

# Names that are called to parse, of functions and methods; `Format` makes the reader of a kind of file.
PARSERS = {
    "Format", "parse_json", "raw_decode", "JSONDecoder", "read_user_json", "read_text", "read_bytes", "regular_file", "read_head",
    "read_listed_rows",
    "safe_load", "safe_load_all", "literal_eval", "safe_open", "load_file", "unpack", "unpack_from", "DictReader",
    "ParquetFile", "read_metadata", "read_table", "load_from_disk", "open_file", "open_stream", "memmap", "from_pretrained",
    "fromfile", "loadtxt", "genfromtxt", "read_csv", "read_parquet", "load_dataset", "model_validate_json", "validate_json",
}  # fmt: skip
# Of these modules, also the short names.
OF_MODULES = {"json": {"load", "loads"}, "yaml": {"load", "load_all", "full_load"}, "np": {"load"}, "torch": {"load"},
              "csv": {"reader"}, "gzip": {"open"}, "bz2": {"open"}, "lzma": {"open"},
              "tomllib": {"load", "loads"}, "pickle": {"load", "loads"}, "configparser": {"ConfigParser"}}  # fmt: skip


def sites() -> dict[str, str]:
    """By place (`module:function` or `module:NAME` of an assignment), the names that are called there."""
    found: dict[str, set[str]] = {}
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            module = path.relative_to(root.parent).as_posix()
            if module in MECHANISM:
                continue
            for place, name in _calls(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(f"{module.removesuffix('.py')}:{place}", set()).add(name)
    return {place: ", ".join(sorted(names)) for place, names in found.items()}


def _calls(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each parsing call with the definition or assignment at module level that it is in."""
    for statement in tree.body:
        place = _name(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and (name := _parser(node.func)):
                yield place, name


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return ", ".join(target.id for target in targets if isinstance(target, ast.Name)) or "module"


def _parser(called: ast.expr) -> str | None:
    if isinstance(called, ast.Name):
        return called.id if called.id in PARSERS else None
    if not isinstance(called, ast.Attribute):
        return None
    module = called.value.id if isinstance(called.value, ast.Name) else ""
    return called.attr if called.attr in PARSERS | OF_MODULES.get(module, set()) else None

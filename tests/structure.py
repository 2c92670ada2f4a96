"""The folders of the product in the order of their imports, floor by floor: `python -m tests.structure`, which `make structure`
calls. The only reader of imports: `tests/unit/test_structure.py` holds what it finds to the rules."""

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pipeline
import stages
from pipeline.progress import say

PIPELINE = Path(pipeline.__file__).parent
STAGES = Path(stages.__file__).parent

# Lowest first: a folder imports only from folders above it in this list, and from itself. docs/architecture.md shows it. A module
# that stands here by its own name has a place of its own.
# `stages` stands beside `pipeline`; nothing imports it by name (`commands/stage_runs.py` does when a stage is called).
ORDER: tuple[str, ...] = (
    "escaping",
    "errors",
    "progress",
    "store",
    "drafts.kinds",
    "engines",
    "config",
    "native",
    "models",
    "corpus",
    "speculation",
    "drafts",
    "servers",
    "notices",
    "acceptance",
    "generation",
    "latency",
    "examination",
    "distillation",
    "quantization",
    "judgement",
    "reference",
    "registry",
    "review",
    "running",
    "export",
    "planning",
    "handover",
    "watch",
    "canary",
    "stages",
    "commands",
    "cli",
)
# Folders within folders that have a floor of their own.
INNER = ("latency.costs", "latency.load", "running.execution")
SHORT = 40  # lines


@cache
def tree(path: Path) -> ast.Module:
    """The syntax of a module, parsed once for all who ask."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of it."""
    return list(ast.walk(tree(path)))


def imports(path: Path) -> set[str]:
    """What a module imports anywhere in it: modules, and names that may be modules."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@cache
def modules() -> dict[str, Path]:
    """Our modules, by name."""
    return {
        ".".join((root.name, *path.relative_to(root).with_suffix("").parts)): path
        for root in (PIPELINE, STAGES)
        for path in sorted(root.rglob("*.py"))
        if path.name != "__init__.py"
    }


@cache
def all_imports() -> dict[str, set[str]]:
    """By module, which of our modules it imports."""
    return {module: imports(path) & modules().keys() for module, path in modules().items()}


def folder_of(module: str, own: tuple[str, ...] = ORDER) -> str:
    """The folder of a module, or the longer name of which `own` has it."""
    package, folder, *rest = module.split(".")
    folder = package if package == "stages" else folder
    return longer if rest and (longer := f"{folder}.{rest[0]}") in own else folder


@dataclass(frozen=True)
class Folder:
    floor: int  # 1 where it imports none of ours
    lines: int
    files: int
    short: int  # files of fewer than SHORT lines


def folders() -> dict[str, Folder]:
    """By name, in the order of the floors: a folder's floor is one above the highest of those that it imports. CycleError where
    folders import each other."""
    own = (*ORDER, *INNER)
    lines: defaultdict[str, list[int]] = defaultdict(list)
    below: defaultdict[str, set[str]] = defaultdict(set)
    for module, imported in all_imports().items():
        name = folder_of(module, own)
        lines[name].append(len(modules()[module].read_text(encoding="utf-8").splitlines()))
        below[name] |= {folder_of(one, own) for one in imported} - {name}
    found: dict[str, Folder] = {}
    for name in TopologicalSorter(below).static_order():
        floor = 1 + max((found[one].floor for one in below[name]), default=0)
        found[name] = Folder(floor, sum(lines[name]), len(lines[name]), sum(n < SHORT for n in lines[name]))
    return dict(sorted(found.items(), key=lambda item: item[1].floor))


def main() -> None:
    found = folders()
    row = "{:>5}  {:<18} {:>6} {:>6} {:>9}".format
    say(row("floor", "folder", "lines", "files", f"under {SHORT}"))
    for name, folder in found.items():
        say(row(folder.floor, name.replace(".", "/"), folder.lines, folder.files, folder.short))
    floors = Counter(folder.floor for folder in found.values())
    total = [sum(getattr(folder, name) for folder in found.values()) for name in ("lines", "files", "short")]
    say(row(len(floors), "total", *total))


if __name__ == "__main__":
    main()

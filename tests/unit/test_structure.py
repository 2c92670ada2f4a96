"""The shape of the house: one direction of imports, light paths, explicit packages."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.structure import ORDER, PIPELINE, STAGES, all_imports, folder_of, folders, imports, nodes, tree

ROOT = Path(__file__).parents[2]
MOST_FLOORS = 16


def _rank(module: str) -> int:
    """Where a module's folder stands in ORDER."""
    folder = folder_of(module)
    assert folder in ORDER, f"{module}: its folder has no place in ORDER"
    return ORDER.index(folder)


def test_imports_go_one_way() -> None:
    """A module imports only from its own folder and from those before it in ORDER, and nobody imports a stage by name."""
    wrong = [
        f"{module} imports {imported}"
        for module, found in all_imports().items()
        for imported in found
        if imported.startswith("stages") or _rank(imported) > _rank(module)
    ]
    assert [] == wrong


def test_folders_stand_on_few_floors() -> None:
    """A folder's floor is one above the highest of those that it imports: who reads from the lowest has as many steps to go.
    Raises CycleError where two folders import each other."""
    assert MOST_FLOORS >= max(folder.floor for folder in folders().values())


def test_modules_of_a_folder_form_no_circle() -> None:
    """Within a folder too, no module is imported by what it imports."""
    assert tuple(TopologicalSorter(all_imports()).static_order())  # raises CycleError naming the circle


def test_the_root_holds_three_modules() -> None:
    """Every other module lies in a folder that says what it is for."""
    assert {"cli", "errors", "progress"} == {path.stem for path in PIPELINE.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize(
    "path", [path for path in STAGES.glob("*.py") if path.name != "__init__.py"], ids=lambda p: p.stem
)
def test_stages_never_import_each_other(path: Path) -> None:
    """Stages talk through artifacts, not through each other."""
    assert set() == {name for name in imports(path) if name.startswith("stages")}


def test_package_inits_are_empty() -> None:
    """Importing a package runs no code."""
    assert [] == [path for root in (PIPELINE, STAGES) for path in root.rglob("__init__.py") if path.read_text()]


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout")
def test_every_package_is_listed_for_the_wheel() -> None:
    """`packages` in pyproject.toml names exactly the packages there are."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {
        ".".join((root.name, *path.parent.relative_to(root).parts))
        for root in (PIPELINE, STAGES)
        for path in root.rglob("__init__.py")
    }
    assert there | {"pipeline.dags"} == listed  # a link to files that Airflow imports


HEAVY = ("torch", "transformers", "trl", "datasets", "mlflow", "bitsandbytes", "scipy", "pyarrow")


LIGHT = (
    ("import pipeline.cli", ()),
    ("from pipeline.config.loading import load_config", ()),
    ("import pipeline.running.jobs, pipeline.running.inputs, pipeline.store.runs", ()),
    ("import pipeline.running.runner, pipeline.commands.tables.summary, pipeline.commands.tables.show", ()),
    ("import pipeline.registry.draft_names, pipeline.registry.finding, pipeline.registry.named", ()),
    ("import pipeline.handover.settle, pipeline.handover.rollback, pipeline.handover.difference", ()),
    ("import pipeline.acceptance.rounds, pipeline.acceptance.moments, pipeline.acceptance.position_bins", ()),
    ("import pipeline.acceptance.profile, pipeline.drafts.kinds, pipeline.store.row_files", ()),
    ("import stages.gate", ("scipy",)),
    ("import stages.promote", ("scipy",)),
)
DECODING = "import pipeline.speculation.decoder, pipeline.acceptance.examine", ("torch", "transformers", "scipy")


@pytest.mark.parametrize("paths", [LIGHT, pytest.param((DECODING,), marks=pytest.mark.long)], ids=["light", "decoding"])
def test_light_paths_stay_light(paths: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Help, config, planning and skipping import nothing heavy; the GPU benchmarks' parts need no trl or mlflow. One process
    imports all of them in turn, so what one may import, those after it may."""
    tell = f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    code = "\n".join(["import sys", *(f"{statement}\n{tell}" for statement, _ in paths)])
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = [set(line.split()) for line in result.stdout.splitlines()]
    assert [] == [
        (statement, found - set(allowed))
        for (statement, allowed), found in zip(paths, imported, strict=True)
        if found - set(allowed)
    ]


def _at_import(path: Path) -> Iterator[ast.AST]:
    """The syntax of a module that runs when it is imported, so without bodies of functions and without `TYPE_CHECKING`."""
    left: list[ast.AST] = [tree(path)]
    while left:
        node = left.pop()
        yield node
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not is_typing and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            left += ast.iter_child_nodes(node)


def _imported_by(*modules: str) -> set[str]:
    """What our modules import when they are imported, with what these import, and so on."""
    found, left = set[str](), list(modules)
    while left:
        module = left.pop()
        path = PIPELINE.parent / f"{module.replace('.', '/')}.py"
        if module in found or not path.exists():
            found.add(module)
            continue
        found.add(module)
        for node in _at_import(path):
            if isinstance(node, ast.Import):
                left += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def test_decoding_imports_no_library_of_other_stages() -> None:
    """The GPU benchmarks' parts need no trl or mlflow, as their syntax says; `make test-long` sees it in a process."""
    statement, allowed = DECODING
    packages = {name.split(".")[0] for name in _imported_by(*statement.removeprefix("import ").split(", "))}
    assert "torch" in packages
    assert set() == packages & set(HEAVY) - set(allowed)


# Where text reaches a terminal: `say` and `Progress` escape it, `Report` and `Painter` hand it to rich, `doctor` has own colours.
PRINTING = (
    "progress",
    "commands/tables/console",
    "commands/tables/decode",
    "commands/doctor",
    "commands/standard_streams",
)


def _prints(path: Path) -> list[str]:
    """Calls of a module that would print text as it is, and streams that it takes."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            owner = getattr(getattr(node.func, "value", None), "id", "")
            if name in ("print", "echo", "secho") or (name, owner) == ("Console", ""):
                found.append(f"{path.stem}:{node.lineno} {name}")
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in ("stdout", "stderr")
            and getattr(node.value, "id", "") == "sys"
        ):
            found.append(f"{path.stem}:{node.lineno} sys.{node.attr}")
    return found


def test_whatever_is_printed_is_escaped() -> None:
    """Text of users can hold control characters, so no module prints but those that escape them (`pipeline.progress.say`)."""
    files = [path for root in (PIPELINE, STAGES) for path in root.rglob("*.py")]
    allowed = {PIPELINE / f"{name}.py" for name in PRINTING}

    assert [] == [line for path in files if path not in allowed for line in _prints(path)]
    assert all(_prints(path) for path in allowed)


def _held(node: ast.AST) -> list[ast.expr]:
    """What a call or a display makes a collection of."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("list", "tuple", "sorted", "dict", "set"):
        return node.args
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [one.value for one in node.elts if isinstance(one, ast.Starred)]
    return []


def test_nothing_holds_all_completions() -> None:
    """A corpus of completions is larger than memory: they are read one after another, or in any order by `StoredCompletions`."""
    readers = ("read_completions", "read_shard", "StoredCompletions.open")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in (PIPELINE, STAGES)
        for path in sorted(package.rglob("*.py"))
        for node in nodes(path)
        for one in _held(node)
        if isinstance(one, ast.Call) and ast.unparse(one.func) in readers and isinstance(node, ast.expr)
    ]
    assert [] == found


def test_only_drafts_ask_which_kind_a_draft_is() -> None:
    """Elsewhere a kind is known by what `drafts/kinds.py` says of it, or not at all: nothing is compared with its name or the
    kind itself, and no draft or model of one is recognised by its class."""
    from pipeline.drafts import kinds

    all_kinds = {name for name, value in vars(kinds).items() if isinstance(value, kinds.Kind)}
    constants = {f"{name}.name" for name in all_kinds} | {
        "EAGLE3",
        "MEDUSA",
        "TLI",
    }  # PLAIN: whether there is a head at all
    classes = {
        node.name
        for path in (PIPELINE / "drafts").glob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Draft", "Model", "Lookup", "Matching"))
    }
    assert {"Eagle3Draft", "Eagle3Model", "MedusaDraft", "PlainDraft", "PromptLookup"} <= classes
    found = []
    for root in (PIPELINE, STAGES):
        for path in root.rglob("*.py"):
            if path.parent == PIPELINE / "drafts":
                continue
            for node in nodes(path):
                if isinstance(node, ast.Compare):
                    sides = [node.left, *node.comparators]
                    names = {one.value for one in sides if isinstance(one, ast.Constant)} & kinds.KINDS.keys()
                    named = {ast.unparse(one) for one in sides} & constants
                    if names - {"plain"} or named:  # `plain` is plain decoding elsewhere
                        found.append(f"{path.relative_to(PIPELINE.parent)}:{node.lineno}")
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                    asked = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
                    found += [f"{path.relative_to(PIPELINE.parent)}:{node.lineno}"] * bool(asked & classes)
    assert [] == found


# Each `.root` outside `pipeline/store`. MLflow's database has absolute paths within the store.
ROOTS = {
    "pipeline/registry/mlflow_client.py": {"location.lock_in.root"},
    "pipeline/corpus/sources.py": {"self.root", "source.root"},  # of a source of prompts
    "pipeline/running/inputs.py": {"files.root"},
    "pipeline/servers/identity.py": {"model.root"},  # a field of OpenAI's API
    "pipeline/servers/target_facts.py": {"identity.model.root"},
}


def test_paths_within_a_store_are_known_to_the_store_only() -> None:
    """Whoever needs one asks `Store`, so that a store can lie elsewhere than on a disk. A message prints the store itself."""
    found: dict[str, set[str]] = {}
    for root in (PIPELINE, STAGES):
        for path in sorted(set(root.rglob("*.py")) - set((PIPELINE / "store").rglob("*.py"))):
            for node in nodes(path):
                if isinstance(node, ast.Attribute) and node.attr == "root":
                    found.setdefault(path.relative_to(root.parent).as_posix(), set()).add(ast.unparse(node))
    assert ROOTS == found


_NOT_RUN = ("docs", "dags", "tests/dags", "tests/device", "tests/e2e", "tests/native", "tests/scale", "tests/service")


def _defined(module: str) -> set[str] | None:
    """What a module of ours has at its top, and its submodules; None where there is no such module."""
    path = ROOT / module.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    if not file.exists():
        return None
    names = {one.stem for one in path.glob("*")}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="runs in a checkout")
def test_what_is_not_run_here_imports_what_there_is() -> None:
    """Examples, and tests that need Airflow, engines or a device: neither `make test` nor mypy reads them, so a new name
    was seen by whoever tried the tutorial."""
    wrong = []
    for file in (path for folder in _NOT_RUN for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
                "pipeline",
                "stages",
                "tests",
            ):
                there = _defined(node.module or "") or set()
                wrong += [f"{file}: {alias.name}" for alias in node.names if alias.name not in there]
    assert [] == wrong

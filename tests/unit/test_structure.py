"""The shape of the house: one direction of imports, light paths, explicit packages."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pipeline
import stages

PIPELINE = Path(pipeline.__file__).parent
STAGES = Path(stages.__file__).parent
ROOT = Path(__file__).parents[2]

# DESIGN section 4, left to right: a module may import from its own group and from groups before it.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "plan", "peak", "compiled"),
    ("artifacts", "spool", "config", "progress", "context", "modelfiles", "hub", "pairfile", "drafts"),
    ("speculation.sampling",),
    ("acceptance",),
    ("models", "corpus", "openpair", "derived"),
    ("speculation",),
    ("generation",),
    ("distillation", "quantization", "latency", "judgement"),
    ("reference",),
    (
        "jobs",
        "runs",
        "outside",
        "forecast",
        "trial",
        "mlflow_store",
        "claims",
        "packaging",
        "registry",
        "tracking",
        "probe",
        "report",
        "recheck",
    ),
    ("runner",),
    ("commands", "cli"),
)


def _group(module: str) -> int:
    """The position of a module (without the `pipeline.` prefix); the longest matching name decides."""
    matches = [
        (len(name), position)
        for position, names in enumerate(ORDER)
        for name in names
        if module == name or module.startswith(f"{name}.")
    ]
    assert matches, f"pipeline.{module} has no place in the import order"
    return max(matches)[1]


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _modules() -> list[Path]:
    return [path for path in PIPELINE.rglob("*.py") if path.name != "__init__.py"]


def _name(path: Path) -> str:
    return ".".join(path.relative_to(PIPELINE).with_suffix("").parts)


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_go_one_way(path: Path) -> None:
    """A module imports only from its own group and from those before it, and never a stage."""
    own = _group(_name(path))
    for imported in _imports(path):
        assert not imported.startswith("stages"), f"{_name(path)} imports {imported}"
        if imported.startswith("pipeline."):
            assert _group(imported.removeprefix("pipeline.")) <= own, f"{_name(path)} imports {imported}"


@pytest.mark.parametrize(
    "path", [path for path in STAGES.glob("*.py") if path.name != "__init__.py"], ids=lambda p: p.stem
)
def test_stages_never_import_each_other(path: Path) -> None:
    """Stages talk through artifacts, not through each other."""
    assert set() == {name for name in _imports(path) if name.startswith("stages")}


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
    assert there == listed


HEAVY = ("torch", "transformers", "trl", "datasets", "mlflow", "bitsandbytes", "scipy", "pyarrow")


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import pipeline.cli", ()),
        ("from pipeline.config.loading import load_config", ()),
        ("import pipeline.jobs, pipeline.outside, pipeline.runs", ()),
        ("import pipeline.runner, pipeline.report.summary, pipeline.report.terminal", ()),
        ("import stages.gate", ("scipy",)),
        ("import pipeline.acceptance.rounds, pipeline.acceptance.moments, pipeline.acceptance.decay", ()),
        ("import pipeline.acceptance.lookup, pipeline.acceptance.loops, pipeline.spool", ()),
        ("import pipeline.speculation.decoder, pipeline.acceptance.examine", ("torch", "transformers", "scipy")),
    ],
)
def test_light_paths_stay_light(statement: str, allowed: tuple[str, ...]) -> None:
    """Help, config, planning and skipping import nothing heavy; the GPU benchmarks' parts need no trl or mlflow."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set() == set(result.stdout.split()) - set(allowed)

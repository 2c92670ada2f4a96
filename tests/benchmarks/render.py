"""BENCHMARKS.md from the JSON files in results/."""

import json
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from tests.benchmarks.figures import RESULTS, ROOT

_HEAD = """# Benchmarks

Made by `make bench`, with one JSON file per benchmark in `tests/benchmarks/results/`. Ratios are more reliable than absolute
figures: the machine is small and shared. Nothing else ran during a measurement.
"""


def render(figures: Mapping[str, ModuleType]) -> None:
    """Write the page from whatever figures there are; each module's `section` says its own."""
    parts = [_HEAD]
    for name, module in figures.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            parts.append("\n".join([*module.section(content["figure"]), "", *_conditions(content), ""]))
    (ROOT / "BENCHMARKS.md").write_text("\n".join(parts))


def _conditions(content: dict[str, Any]) -> Iterator[str]:
    machine, versions = content["machine"], content["versions"]
    yield (
        f"`{content['command']}` on {machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    )

"""BENCHMARKS.md from the JSON files in results/."""

import json
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import RESULTS, ROOT

_HEAD = """# Benchmarks

Made by `make bench`, one JSON file a figure in `tests/benchmarks/results/`. Read ratios and orders, not the last digit:
the machine is small and shared. Nothing else ran beside a measurement.
"""


def render() -> None:
    """Write the page from whatever figures there are."""
    parts = [_HEAD]
    for name, section in (("quickstart", _quickstart), ("light_paths", _light_paths)):
        path = RESULTS / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            parts.append("\n".join([*section(content["figure"]), "", *_conditions(content), ""]))
    (ROOT / "BENCHMARKS.md").write_text("\n".join(parts))


def _conditions(content: dict[str, Any]) -> Iterator[str]:
    machine, versions = content["machine"], content["versions"]
    yield (
        f"`{content['command']}` on {machine['cores']} cores of {machine['cpu']}, Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + "."
    )


def _quickstart(figure: dict[str, Any]) -> Iterator[str]:
    yield "## The quickstart, from an empty store\n"
    yield f"{figure['seconds']:.0f} s in all (at most 480, aim 300), {figure['peak_gibibytes']:.1f} GiB at most (limit 4).\n"
    yield "Temperature 1, unseen prompts, 95% intervals by prompt:\n"
    yield f"| draft | acceptance rate | tokens per target call, gamma {figure['gamma']} | at temperature 0 | MB |"
    yield "|---|---|---|---|---|"
    for draft in figure["drafts"]:
        if draft["broken"]:
            continue
        alpha, omega = draft["acceptance_rate"], draft["tokens_per_target_call"]
        yield (
            f"| {draft['name']} | {alpha['value']:.3f} [{alpha['low']:.3f}, {alpha['high']:.3f}] "
            f"| {omega['value']:.2f} [{omega['low']:.2f}, {omega['high']:.2f}] "
            f"| {draft['acceptance_rate_greedy']:.3f} | {draft['megabytes']:.2f} |"
        )
    yield "\nSeconds by stage: " + ", ".join(f"{name} {value:.1f}" for name, value in figure["stages"].items()) + "."


def _light_paths(figure: dict[str, Any]) -> Iterator[str]:
    torch = figure["python -c 'import torch'"]["median"]
    yield "## What must stay light\n"
    yield "| command | median s | lowest, highest | of `import torch` |"
    yield "|---|---|---|---|"
    for name, times in figure.items():
        spread = f"{times['lowest']:.2f}, {times['highest']:.2f}"
        yield f"| `{name}` | {times['median']:.2f} | {spread} | {times['median'] / torch:.2f} |"

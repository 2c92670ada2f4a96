"""Start-up times: help, a dry run, a run whose stages are all reused."""

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import UNDERSTUDY, seconds, write


def main() -> None:
    with tempfile.TemporaryDirectory() as store:
        subject = [UNDERSTUDY, "run", "configs/smoke.yaml", "--store", store]
        figure = {
            "python -c pass": seconds([sys.executable, "-c", "pass"], 5),
            "python -c 'import torch'": seconds([sys.executable, "-c", "import torch"], 5),
            "understudy --help": seconds([UNDERSTUDY, "--help"], 5),
            "understudy run --dry-run": seconds([*subject, "--dry-run"], 5),
            "understudy run, all in the store": seconds(subject, 5),  # the unmeasured call builds it
            "understudy show": seconds([UNDERSTUDY, "show", "--store", store], 5),
        }
    write("light_paths", "python -m tests.benchmarks light_paths", figure)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    torch = figure["python -c 'import torch'"]["median"]
    yield "## Start-up times\n"
    yield "| command | median s | min, max | relative to `import torch` |"
    yield "|---|---|---|---|"
    for name, times in figure.items():
        spread = f"{times['lowest']:.2f}, {times['highest']:.2f}"
        yield f"| `{name}` | {times['median']:.2f} | {spread} | {times['median'] / torch:.2f} |"

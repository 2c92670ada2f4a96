"""How long `make test` takes, and where: from what it prints (`tests/budget.py`). Nothing else may run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import shared_cache
from tests.benchmarks.figures import ROOT, write

AIMS = {True: 240, False: 300}  # seconds, by whether the processor has AVX-512
_FAILED = re.compile(r"(?:^|[ ,])(\d+) (?:failed|errors?)\b", re.MULTILINE)
_ROW = re.compile(r" *(\d+\.\d) *(\d+\.\d)  (\S.*)")


def main() -> None:
    """Runs it with nothing made before, as on a clean clone but for the environment."""
    shutil.rmtree(shared_cache.CACHE, ignore_errors=True)
    subject = _subject()
    ended = subprocess.run(["make", "test"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    sys.stdout.write(ended.stdout)
    write("suite", "python -m tests.benchmarks suite", printed(ended.stdout) | subject)


def printed(text: str) -> dict[str, Any]:
    """The figure in what a session with a budget prints. ValueError where tests failed, whose time says nothing, or where it is
    not complete."""
    if (failed := _FAILED.search(text)) is not None:
        raise ValueError(f"{failed[1]} tests failed; a time is recorded of tests that pass")
    collection = _number(text, r"collection (\d+(?: \+ \d+)*) s").split(" + ")
    return {
        "passed": int(_number(text, r"(\d+) passed")),
        "seconds": float(_number(text, r"wall time (\d+) s")),
        "cpu_seconds": float(_number(text, r"CPU time (\d+) s")),
        "collection_cpu_seconds": [float(one) for one in collection],  # of each worker
        "slowest": [
            {"seconds": float(row[1]), "cpu_seconds": float(row[2]), "test": row[3]}
            for line in text.partition("slowest tests\n")[2].splitlines()
            if (row := _ROW.fullmatch(line)) is not None
        ],
    }


def _number(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"nothing printed is {pattern!r}")
    return found[1]


def _subject() -> dict[str, Any]:
    """What was measured, and where."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return {"commit": commit.strip(), "avx512": "avx512f" in flags.split()}


def aim(figure: dict[str, Any]) -> int:
    """Wall seconds."""
    return AIMS[figure["avx512"]]


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    collection = figure["collection_cpu_seconds"]
    yield "## How long `make test` takes\n"
    here, other = ("with", "without") if figure["avx512"] else ("without", "with")
    yield (
        f"{figure['passed']:,} tests of commit {figure['commit'][:12]} in {len(collection)} processes: "
        f"{figure['seconds']:.0f} s. The aim is {aim(figure)} on a CPU {here} AVX-512, as this one, and "
        f"{AIMS[not figure['avx512']]} on one {other}. CPU time {figure['cpu_seconds']:.0f} s, {sum(collection):.0f} of them for "
        "collection. The slowest:\n"
    )
    yield "| test | wall s | CPU s |"
    yield "|---|---|---|"
    for row in figure["slowest"]:
        yield f"| `{row['test'].removeprefix('tests/')}` | {row['seconds']:.1f} | {row['cpu_seconds']:.1f} |"

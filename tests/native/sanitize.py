"""Runs harness.c under the address and undefined behaviour sanitizers, for every build that this processor runs.

Prints the harness's line for each group of cases, then `N passed, N failed, N skipped`. Exits 1 if anything failed.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HARNESS = Path(__file__).parent / "harness.c"
FLAGS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Wno-psabi"]
DTYPES = {"fp32": [], "bf16": ["-DBF16"]}
_SECONDS = 300
_REPORT_LINES = 12


@dataclass(frozen=True)
class Variant:
    """A build, and what the processor must have to run it, in the words of /proc/cpuinfo."""

    name: str
    flags: tuple[str, ...]
    needs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = tuple(DTYPES)


VARIANTS = [
    Variant("native", ("-march=native", "-fopenmp")),
    Variant("without OpenMP", ("-march=native",)),
]
X86_VARIANTS = [
    Variant("without AMX", ("-march=native", "-fopenmp", "-mno-amx-bf16", "-mno-amx-tile"), dtypes=("bf16",)),
    Variant(
        "without bf16 units",
        ("-march=native", "-fopenmp", "-mno-amx-bf16", "-mno-amx-tile", "-mno-avx512bf16"),
        dtypes=("bf16",),
    ),
    Variant("vectors of four", ("-march=x86-64", "-fopenmp")),
    Variant("vectors of sixteen", ("-march=native", "-fopenmp", "-mno-amx-bf16", "-mno-amx-tile", "-DLANES=16")),
    Variant("x86-64-v3", ("-march=x86-64-v3", "-fopenmp"), ("avx2", "bmi2", "fma")),
    Variant(
        "amx tiles",
        ("-march=x86-64-v4", "-fopenmp", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        ("amx_tile", "amx_bf16", "avx512_bf16"),
        dtypes=("bf16",),
    ),
]


@dataclass
class Outcome:
    """What to print for one build, and its counts."""

    lines: list[str]
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def build_and_run(compiler: str, variant: Variant, dtype: str, have: set[str]) -> Outcome:
    """A build that the processor cannot run is compiled all the same."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "harness")
        name = f'-DVARIANT="{variant.name}"'
        command = [compiler, *FLAGS, *variant.flags, *DTYPES[dtype], name, str(HARNESS), "-lm", "-o", str(program)]
        compiled = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
        if compiled.returncode:
            said = compiled.stderr.strip().splitlines()[:_REPORT_LINES]
            return Outcome([f"failed  {variant.name} {dtype}: it does not compile", *said], failed=1)
        if not have.issuperset(variant.needs):
            return Outcome([f"skipped: {variant.name} (this processor has none)"], skipped=1)
        options = {"OMP_NUM_THREADS": "3", "ASAN_OPTIONS": "detect_leaks=0"}
        ran = subprocess.run(
            [program], capture_output=True, text=True, errors="replace", timeout=_SECONDS, env=os.environ | options
        )
    lines = ran.stdout.splitlines()
    counts = re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped", lines[-1]) if lines else None
    if counts is None:  # a sanitizer stopped it
        report = [line for line in ran.stderr.splitlines() if line.strip("= \t")][:_REPORT_LINES]
        return Outcome(
            [*lines, f"failed  {variant.name} {dtype}: stopped with exit code {ran.returncode}", *report], failed=1
        )
    return Outcome(lines[:-1], *map(int, counts.groups()))


def cpu_flags() -> set[str]:
    """Instruction sets of this processor; none where /proc/cpuinfo does not say."""
    try:
        line = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        line = None
    return set(line[1].split()) if line else set()


def main() -> int:
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        print("no C compiler: install gcc (Debian: build-essential), or name another in CC")
        return 1
    variants = VARIANTS + (X86_VARIANTS if platform.machine() == "x86_64" else [])
    builds = [(variant, dtype) for variant in variants for dtype in variant.dtypes]
    have, total = cpu_flags(), Outcome([])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for outcome in pool.map(lambda build: build_and_run(compiler, *build, have), builds):
            print("\n".join(outcome.lines), flush=True)
            total.passed += outcome.passed
            total.failed += outcome.failed
            total.skipped += outcome.skipped
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())

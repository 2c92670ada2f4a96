"""Allocations that really fail (`limited_memory.py`, a process with RLIMIT_AS): the error's size fits, and smaller batches give
the same figures."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long  # that an error of memory is met so: `tests/unit/models/test_out_of_memory.py`


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    line = [sys.executable, "-m", "tests.integration.limited_memory"]
    # All large blocks are mapped and unmapped: what is freed does not stay in a fragmented heap.
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, **malloc, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=300)
    assert 0 == ended.returncode, ended.stderr
    return {**json.loads(ended.stdout), "err": ended.stderr}


def test_generation_names_a_batch_that_fits(found: dict[str, Any]) -> None:
    """Under the same limit, a batch of that size is generated."""
    result = found["generation"]
    assert re.fullmatch(
        r"generate\.batch = 256: out of memory; (\d+) fits: set generate\.batch to \1 and run again", result["said"]
    )
    assert 0 < result["fits"] < 256
    assert result["fits"] == result["made"]


def test_examination_names_a_batch_that_fits_and_goes_on_with_it_where_no_key_says(found: dict[str, Any]) -> None:
    """Under the same limit, the figures of the smaller batches are those of the larger ones up to rounding."""
    result = found["examination"]
    assert re.search(r"evaluate\.batch_tokens = 10000: out of memory; \d+ fits", result["said"])
    assert f"examine: out of memory; going on with {result['smaller']:,}" == result["lines"][-1]
    for found_with in ("named", "found"):
        assert pytest.approx(result["expected"], rel=1e-6) == result[found_with]


def test_decode_processes_fewer_prompt_tokens_at_once(found: dict[str, Any]) -> None:
    """The text stays the same, and a note says so."""
    result = found["decoding"]
    assert result["expected"] == result["found"]
    assert result["lines"][-1].startswith("decode: prompt tokens of a pass: out of memory; going on with ")


def test_probe_completes_fewer_prompts_at_once(found: dict[str, Any]) -> None:
    """All of them in the end."""
    assert 32 == found["decoding"]["completed"]
    assert "warning: probe: completions of a batch: out of memory; going on with 16" in found["err"]

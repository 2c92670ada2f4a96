"""Where the benchmark's pair and its cells lie, and how to tell one pair from another. Light: it is read without torch."""

import hashlib
import os
from functools import cache
from pathlib import Path

from tests.benchmarks.figures import RESULTS, ROOT

CONFIG = "tests/benchmarks/distill.yaml"
_METHODS = 2  # raised when what is measured changes: what was stored before then says nothing any more

PLACE = Path(os.environ.get("UNDERSTUDY_BENCH_DISTILL", ROOT / ".understudy" / "distill"))
CELLS = RESULTS / "distillation"
TARGETS = {"near": "target", "moved": "moved"}  # by regime


@cache
def pair_digest() -> str:
    """Of weights, prompts, what is generated and the methods. Training is deterministic, but not across kinds of machine."""
    digest = hashlib.sha256()
    for name in ("target", "draft", "moved"):
        digest.update((PLACE / name / "model.safetensors").read_bytes())
    digest.update((PLACE / "prompts.jsonl").read_bytes())
    digest.update((ROOT / CONFIG).read_bytes())
    digest.update(str(_METHODS).encode())
    return digest.hexdigest()[:16]

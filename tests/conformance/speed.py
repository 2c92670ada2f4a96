"""Tokens per second of the engines on the reference pair at temperature 0, plain and speculating. JSON on standard output.

    python -m tests.conformance.speed [STORE]

Run it with nothing else on the machine and without OMP_NUM_THREADS: engines take all cores they find. Environments are
those of `make conformance`; VLLM_PYTHON and OPENVINO_PYTHON name others. An engine whose interpreter is not there is left
out. Each figure follows an unmeasured call of the same kind.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT
from tests.conformance.engines import Engine, openvino_job, vllm_job
from tests.conformance.subject import TOKENS, Subject, read_subject

GAMMAS = (0, 1, 3, 5)  # 0: no speculation
PROMPTS_BY_BATCH = {1: 16, 16: 64}


def measure(store: Path) -> dict[str, Any]:
    """Rows of engine, batch, gamma, tokens and tokens per second."""
    subject = read_subject(store)
    vllm = Engine("engine_vllm.py", _interpreter("VLLM_PYTHON", ".venv-engines"), "libiomp5.so")
    openvino = Engine("engine_openvino.py", _interpreter("OPENVINO_PYTHON", ".venv-openvino"))
    rows: list[dict[str, Any]] = []
    if vllm.interpreter.exists():
        rows += _vllm(vllm, subject)
    if openvino.interpreter.exists():
        with tempfile.TemporaryDirectory() as work:
            rows += _openvino(openvino, subject, Path(work))
    return {"cores": len(os.sched_getaffinity(0)), "threads": os.environ.get("OMP_NUM_THREADS"), "rows": rows}


def _interpreter(variable: str, environment: str) -> Path:
    return Path(os.environ.get(variable, ROOT / environment / "bin" / "python"))


def _vllm(engine: Engine, subject: Subject) -> Iterator[dict[str, Any]]:
    for batch, prompts in PROMPTS_BY_BATCH.items():
        for gamma in GAMMAS:
            draft = subject.draft if gamma else None
            calls = [(0.0, 0), (0.0, 0)]
            asked = subject.prompts[:prompts]
            result = engine.run(vllm_job(subject.target, draft, asked, TOKENS, calls, gamma=gamma, batch=batch))
            yield _row(result, batch, gamma)


def _openvino(engine: Engine, subject: Subject, work: Path) -> Iterator[dict[str, Any]]:
    stop, asked = subject.stop_tokens[0], subject.prompts[: PROMPTS_BY_BATCH[1]]
    for gamma in GAMMAS:
        draft = subject.draft if gamma else None
        job = openvino_job(subject.target, draft, asked, TOKENS, work, stop_token=stop, gamma=gamma)
        yield _row(engine.run(job), 1, gamma)


def _row(result: dict[str, Any], batch: int, gamma: int) -> dict[str, Any]:
    call = result["calls"][-1]
    tokens = sum(len(emitted) for emitted in call["tokens"])
    return {
        "engine": result["engine"],
        "version": result["version"],
        "batch": batch,
        "gamma": gamma,
        "tokens": tokens,
        "tokens_per_second": tokens / call["seconds"],
    }


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CONFORMANCE_STORE", ".understudy"))
    print(json.dumps(measure(where), indent=1))

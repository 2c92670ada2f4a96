"""Running an engine in its own environment: a job file in, a result file out."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Engine:
    """A script of this directory and the interpreter that can run it. `preload` is a shared library of the interpreter's
    environment that is loaded first, where it is there: vLLM asks for Intel's OpenMP if it is to be quick."""

    script: str
    interpreter: Path
    preload: str = ""

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """What the engine answers; AssertionError with the end of its log if it dies."""
        with tempfile.TemporaryDirectory() as scratch:
            asked, answered = Path(scratch) / "job.json", Path(scratch) / "result.json"
            asked.write_text(json.dumps(job))
            done = subprocess.run(
                [self.interpreter, HERE / self.script, asked, answered],
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert done.returncode == 0, f"{self.script} exited {done.returncode}:\n{done.stdout[-4000:]}"
            result: dict[str, Any] = json.loads(answered.read_text())
        return result

    def _environment(self) -> dict[str, str]:
        library = self.interpreter.parents[1] / "lib" / self.preload
        return os.environ | ({"LD_PRELOAD": str(library)} if self.preload and library.exists() else {})


def _common(target: Path, draft: Path | None, prompts: Sequence[Iterable[int]], max_tokens: int) -> dict[str, Any]:
    """What the jobs of all engines hold, as JSON."""
    return {
        "target": str(target),
        "draft": str(draft) if draft else None,
        "prompts": [[int(token) for token in prompt] for prompt in prompts],
        "max_tokens": max_tokens,
    }


def vllm_job(
    target: Path,
    draft: Path | None,
    prompts: Sequence[Iterable[int]],
    max_tokens: int,
    calls: Sequence[tuple[float, int]],
    *,
    method: str = "draft_model",
    gamma: int = 0,
    draft_sampling: str = "greedy",
    repaired: bool = True,
    batch: int = 64,
    options: Mapping[str, Any] = {},
    speculative: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """A job of engine_vllm.py; `calls` are (temperature, seed), `options` further arguments of vLLM's LLM, `speculative` further
    keys of its speculative config."""
    return {
        **_common(target, draft, prompts, max_tokens),
        "calls": [{"temperature": temperature, "seed": seed} for temperature, seed in calls],
        "method": method,
        "gamma": gamma,
        "draft_sampling": draft_sampling,
        "repaired": repaired,
        "batch": batch,
        "options": dict(options),
        "speculative": dict(speculative),
    }


def openvino_job(
    target: Path,
    draft: Path | None,
    prompts: Sequence[Iterable[int]],
    max_tokens: int,
    work: Path,
    *,
    stop_token: int,
    gamma: int = 0,
) -> dict[str, Any]:
    """A job of engine_openvino.py, which keeps exported models in `work`."""
    return {
        **_common(target, draft, prompts, max_tokens),
        "work": str(work),
        "stop_token": stop_token,
        "gamma": gamma,
    }

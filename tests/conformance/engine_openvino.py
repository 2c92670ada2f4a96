"""openvino-genai asked to decode, run by the interpreter of its own environment: a JSON job in, a JSON result out.

    .venv-openvino/bin/python tests/conformance/engine_openvino.py JOB.json RESULT.json

A job names `target` and `draft` (model directories; null: no speculation), `gamma`, `prompts` (token ids), `max_tokens` and
`work`, a directory where the models lie once they are exported to OpenVINO's format, in fp32. Temperature 0 only, a prompt
at a time: sampling with speculation is not to be had here. The result holds, prompt by prompt, the emitted token ids, what
each target call emitted and how many tokens were accepted (the engine's own metrics), and the seconds of all.

Imports nothing of Understudy.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    target, draft = (exported(job[role], Path(job["work"]) / role) for role in ("target", "draft"))
    import openvino_genai

    more = {"draft_model": openvino_genai.draft_model(draft, "CPU", **_EXACT)} if draft else {}
    pipe = openvino_genai.LLMPipeline(target, "CPU", **more, **_EXACT)
    call = decode(pipe, job)
    result = {"engine": "openvino-genai", "version": openvino_genai.__version__, "calls": [call]}
    Path(result_file).write_text(json.dumps(result))


def exported(model: str | None, to: Path) -> str | None:
    """The model in OpenVINO's format; exported once a work directory."""
    if model is not None and not (to / "openvino_model.xml").exists():
        tool = Path(sys.executable).parent / "optimum-cli"
        options = ["--task", "text-generation-with-past", "--weight-format", "fp32"]
        subprocess.run([tool, "export", "openvino", "--model", model, *options, to], check=True)
    return str(to) if model is not None else None


def decode(pipe: Any, job: dict[str, Any]) -> dict[str, Any]:
    """All prompts, one after the other. The first is decoded twice, so that nothing is warmed up at its expense."""
    import numpy as np
    import openvino
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.apply_chat_template = job["max_tokens"], False, False
    config.set_eos_token_id(job["stop_token"])
    if job["draft"]:
        config.num_assistant_tokens = job["gamma"]
    tokens, steps, accepted, seconds = [], [], [], 0.0
    for prompt in [job["prompts"][0], *job["prompts"]]:
        ids_1T = np.array([prompt], dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids_1T), openvino.Tensor(np.ones_like(ids_1T)))
        began = time.perf_counter()
        found = pipe.generate(inputs, config)
        seconds += time.perf_counter() - began
        speculating = found.extended_perf_metrics if job["draft"] else None
        metrics = speculating.main_model_metrics if speculating else found.perf_metrics
        accepted.append(speculating.get_num_accepted_tokens() if speculating else 0)
        tokens.append([int(token) for token in found.tokens[0]])
        steps.append([int(size) for size in metrics.raw_metrics.m_batch_sizes])
        if len(tokens) == 1:
            warm = seconds
    return {
        "temperature": 0.0,
        "tokens": tokens[1:],
        "steps": steps[1:],
        "accepted": accepted[1:],
        "seconds": seconds - warm,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])

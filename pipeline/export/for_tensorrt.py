"""Files with which TensorRT-LLM serves the target with the draft."""

from typing import Any

import yaml

from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import HERE, launch_script
from pipeline.export.target import needs_code, target_name
from pipeline.latency.load.schedule import for_tensorrt

CONFIG = "config.yaml"


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """By name: the launch script, and the YAML file that it passes."""
    words = ["trtllm-serve", "$TARGET", "--extra_llm_api_options", f"{HERE}/{CONFIG}"]
    words += ["--tp_size", str(plan.tensor_parallel)]
    if needs_code(plan.draft):
        words.append("--trust_remote_code")
    if plan.draft.config.gate.load is not None:
        words += ["--max_batch_size", str(plan.draft.config.gate.load.max_batch)]
    comment = f"Serves the target with this draft. Read in TensorRT-LLM's documentation ({plan.facts.checked})."
    note = "# The path of the draft is absolute: after moving this directory, edit speculative_model.\n"
    return {
        "launch.sh": launch_script(plan.comment(comment), target_name(plan.draft), words),
        CONFIG: note + yaml.safe_dump(llm_options(plan), sort_keys=False),
    }


def llm_options(plan: ExportPlan) -> dict[str, Any]:
    """The content of the YAML file."""
    lengths = plan.lengths
    return {
        "backend": "pytorch",
        "disable_overlap_scheduler": True,
        "return_perf_metrics": True,
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "speculative_model": str(plan.out / "draft"),
            **(for_tensorrt(lengths.by_batch) if lengths.by_batch else {"max_draft_len": lengths.gamma}),
        },
    }

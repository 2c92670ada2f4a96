"""Files with which TensorRT-LLM serves the target with the draft."""

from typing import Any

import yaml

from pipeline.export.checks import NUMBERS
from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import HERE, launch_script
from pipeline.export.target import needs_code, target_name
from pipeline.latency.load.schedule import for_tensorrt
from pipeline.registry.named import Draft

CONFIG = "config.yaml"


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the launch script, and the YAML file that it passes."""
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
    """The content of the YAML file. A head is computed in the pass of the target, beside which the overlap scheduler works."""
    lengths, draft = plan.lengths, plan.draft
    return {
        "backend": "pytorch",
        **_of_kind(draft),
        "return_perf_metrics": True,
        "speculative_config": {
            "decoding_type": plan.facts.methods[draft.kind.name],
            "speculative_model": str(plan.out / "draft"),
            **(for_tensorrt(lengths.by_batch) if lengths.by_batch else {"max_draft_len": lengths.gamma}),
            **({"eagle3_layers_to_capture": [state - 1 for state in plan.states]} if plan.states else {}),
        },
    }


def _of_kind(draft: Draft) -> dict[str, Any]:
    if not draft.kind.reads_states:
        return {"disable_overlap_scheduler": True}
    dtype = draft.pair.dtype("target")
    return {"dtype": dtype} if dtype in NUMBERS else {}

"""Files with which SGLang serves the target with the draft."""

from pipeline.export.checks import NUMBERS
from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import HERE, PYTHON, launch_script
from pipeline.export.target import needs_code, target_name

_QUANTIZATION = {"unquantized": "unquant", "int8": "bitsandbytes", "int4": "bitsandbytes", "fp8": "fp8"}


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the launch script."""
    gamma, source = plan.lengths.gamma, plan.draft.config.pair.target
    words = [PYTHON, "-m", "sglang.launch_server", "--model-path", "$TARGET"]
    if source.is_hub and not source.is_served and source.revision:
        words += ["--revision", source.revision]
    if plan.draft.kind.reads_states and (dtype := plan.draft.pair.dtype("target")) in NUMBERS:
        words += ["--dtype", dtype]  # of both: a head reads the target's states
    if needs_code(plan.draft):
        words.append("--trust-remote-code")
    words += [
        *("--speculative-algorithm", plan.facts.methods[plan.draft.kind.name]),
        *("--speculative-draft-model-path", f"{HERE}/draft"),
        *("--speculative-draft-model-quantization", _QUANTIZATION[plan.draft.variant]),
        *("--speculative-num-steps", str(gamma)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(gamma + 1)),
        *(["--speculative-use-rejection-sampling"] if plan.drafting == "probabilistic" else []),
        *("--tp-size", str(plan.tensor_parallel)),
        "--enable-metrics",
    ]
    comment = f"Serves the target with this draft. Read in SGLang's source ({plan.facts.checked})."
    return {"launch.sh": launch_script(plan.comment(comment), target_name(plan.draft), words)}

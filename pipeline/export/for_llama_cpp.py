"""Files with which llama.cpp serves the target with the draft."""

from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.shell import HERE, launch_script

DRAFT = "draft.gguf"


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the launch script. The target must be a GGUF file, so TARGET has no default."""
    words = [
        *("llama-server", "-m", "$TARGET"),
        *("-md", f"{HERE}/{DRAFT}"),
        *("--spec-type", "draft-simple"),
        *("--spec-draft-n-max", str(plan.lengths.gamma)),
        *("--spec-draft-n-min", "0"),
        *("--spec-draft-p-min", "0"),
        *("--spec-draft-sampling", plan.drafting),
        "--metrics",
    ]
    comment = f"Serves the target, a GGUF file, with this draft. Checked with llama.cpp {plan.facts.checked}."
    return {"launch.sh": launch_script(plan.comment(comment), "", words)}

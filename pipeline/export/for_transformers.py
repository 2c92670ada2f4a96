"""Files with which transformers decodes with the draft: it reads the draft length from the draft's generation config."""

from typing import Any

from pipeline.export.plan import ExportPlan
from pipeline.export.schema import ExpectedCounters
from pipeline.export.target import target_name


def files(plan: ExportPlan, expected: ExpectedCounters) -> dict[str, str]:
    """The files by name: the lines of Python that use the draft."""
    sampled = plan.draft.config.sampling.temperature > 0
    return {
        "launch.txt": "\n".join(
            [
                f"# Checked with transformers {plan.facts.checked}. Batch size 1.",
                "from transformers import AutoModelForCausalLM, AutoTokenizer",
                "",
                f'target = AutoModelForCausalLM.from_pretrained({target_name(plan.draft)!r}, dtype="auto")',
                f'draft = AutoModelForCausalLM.from_pretrained({str(plan.out / "draft")!r}, dtype="auto")',
                f"tokenizer = AutoTokenizer.from_pretrained({str(plan.out / 'draft')!r})",
                'inputs = tokenizer("...", return_tensors="pt")',
                f"output = target.generate(**inputs, assistant_model=draft, do_sample={sampled})",
                "",
            ]
        )
    }


def assistant_settings(plan: ExportPlan) -> dict[str, Any]:
    """Keys of the draft's generation_config.json: always `gamma` tokens, whatever the draft's confidence."""
    return {
        "num_assistant_tokens": plan.lengths.gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }

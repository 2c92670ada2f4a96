"""What a job asks of its stage, where a stage builds several artifacts. Torch-free; runs nothing.

A task is part of the stage's context and of the artifact's key. The name of the artifact (`Job.part`) is for people only.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.config.quantize import QuantizedVariant, Variant

UNQUANTIZED: Variant = "unquantized"
TargetRole = Literal["target", "target_before"]
DraftRole = Literal["base", "candidate", "champion"]
Split = Literal["train", "dev", "examination"]


@dataclass(frozen=True, kw_only=True)
class GenerateTask:
    """Completions of the prompts of `splits` by one of the targets."""

    target: TargetRole
    splits: tuple[Split, ...]

    def key_settings(self) -> dict[str, Any]:
        """JSON; enters the content key."""
        return {"target": self.target, "splits": list(self.splits)}


@dataclass(frozen=True, kw_only=True)
class QuantizeTask:
    """One quantized variant of the candidate."""

    variant: QuantizedVariant

    def key_settings(self) -> dict[str, Any]:
        """JSON; enters the content key."""
        return {"variant": self.variant}


@dataclass(frozen=True, kw_only=True)
class EvaluateTask:
    """The examination of one draft model, or of prompt-lookup, on the completions of one target."""

    kind: Literal["model", "prompt-lookup"]
    role: DraftRole | None = None  # None: prompt-lookup
    variant: Variant | None = None  # of the candidate
    target: TargetRole = "target"
    split: Literal["dev", "examination"] = "examination"

    def key_settings(self) -> dict[str, Any]:
        """JSON; enters the content key. Role and variant do not: an examination depends on the draft's content alone, so a
        candidate that has become the champion is not examined again."""
        return {"kind": self.kind, "target": self.target, "split": self.split}


Task = GenerateTask | QuantizeTask | EvaluateTask


def task_json(task: Task | None) -> dict[str, Any]:
    """All fields, for manifests and run records; empty where the stage builds one artifact only."""
    return {} if task is None else {**asdict(task), **task.key_settings()}


# Inputs of gate and promote that there is one of for each variant of the candidate.


def draft_input(variant: Variant) -> str:
    """The name of the input that holds the draft."""
    return f"draft_{variant}"


def examination_input(variant: Variant, split: Literal["dev", "examination"] = "examination") -> str:
    """The name of the input that holds the draft's examination."""
    return f"{split}_{variant}"


def profile_input(variant: Variant) -> str:
    """The name of the input that holds the measured step times."""
    return f"profile_{variant}"

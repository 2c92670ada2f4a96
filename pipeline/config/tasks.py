"""What a job asks of its stage, where a stage builds several artifacts. Torch-free; runs nothing.

What the stage is asked is a field of its settings, and so of the artifact's key. The name of the artifact (`Job.part`), and whose
draft it examines, are for people and tables only.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.config.quantize import QuantizedVariant, Variant
from pipeline.drafts.kinds import KindName

TargetRole = Literal["target", "target_before"]
DraftRole = Literal["base", "candidate", "champion"]
Split = Literal["train", "dev", "examination"]


@dataclass(frozen=True, kw_only=True)
class GenerateTask:
    """Completions of the prompts of `splits` by one of the targets."""

    target: TargetRole
    splits: tuple[Split, ...]


@dataclass(frozen=True, kw_only=True)
class PromptsTask:
    """What the target expects at the last positions of the train prompts, at most so many of each."""

    positions: int

    @property
    def target(self) -> TargetRole:
        return "target"

    @property
    def splits(self) -> tuple[Split, ...]:
        return ("train",)


@dataclass(frozen=True, kw_only=True)
class QuantizeTask:
    """One quantized variant of the candidate."""

    variant: QuantizedVariant


@dataclass(frozen=True, kw_only=True)
class Examination:
    """An examination of a draft on the completions of one target."""

    kind: KindName
    target: TargetRole = "target"
    split: Literal["dev", "examination"] = "examination"


@dataclass(frozen=True, kw_only=True)
class EvaluateTask(Examination):
    """An examination, and whose draft it is of. An examination depends on the draft's content alone, so a candidate that has
    become the champion is not examined again."""

    role: DraftRole | None = None  # None: a draft without weights, which is the same in every run
    variant: Variant | None = None  # of the candidate

    @property
    def examination(self) -> Examination:
        """What the stage is asked."""
        return Examination(kind=self.kind, target=self.target, split=self.split)


Task = GenerateTask | PromptsTask | QuantizeTask | EvaluateTask


def task_json(task: Task | None) -> dict[str, Any]:
    """All fields, for manifests and run records; empty where the stage builds one artifact only."""
    return (
        {}
        if task is None
        else {name: list(setting) if isinstance(setting, tuple) else setting for name, setting in asdict(task).items()}
    )


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


CHAMPION_PROFILE = "profile_champion"  # the input that holds those with the champion

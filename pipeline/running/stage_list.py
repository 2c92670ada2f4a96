"""The stages of the loop, in order, with their versions. Standard library only; reads no config and runs nothing."""

from typing import NamedTuple


class Stage(NamedTuple):
    """One stage of the loop.

    `version` enters the content key of everything the stage writes: raise it when a fix changes what the stage writes.
    A stage that is not `cached` acts on the outside world (the registry) and runs again in every run. One that is `resumable`
    goes on from the files that a killed run left in its work directory. One that `needs_registry` compares with the champion, so
    the run stops there if the registry does not answer. Settings that the user left open are known once a stage that
    `completes_config` is done, and with them the jobs after it (`after_stage.py`). One that `uses_device` computes on it: a
    GPU that is not there is reported before anything is built. One that is `in_parts` can be made by many tasks of a scheduler
    (`share_run.py`).
    """

    name: str
    version: int
    summary: str
    cached: bool = True
    resumable: bool = False
    needs_registry: bool = False
    completes_config: bool = False
    uses_device: bool = False
    in_parts: bool = False


STAGES: tuple[Stage, ...] = (
    Stage("pair", 12, "resolve and check the models", resumable=True, completes_config=True, uses_device=True),
    Stage("corpus", 15, "read, clean and split the prompts"),
    Stage("generate", 12, "target completions and distributions", resumable=True, uses_device=True, in_parts=True),
    Stage("distill", 9, "train the draft", resumable=True, uses_device=True),
    Stage("quantize", 4, "INT8, INT4 or FP8 variant of the draft", uses_device=True),
    Stage(
        "evaluate",
        12,
        "teacher-forced acceptance, every draft length",
        resumable=True,
        uses_device=True,
        in_parts=True,
    ),
    Stage("speed", 4, "step times, plain and at each draft length, in turns", uses_device=True),
    Stage("gate", 20, "apply the promotion rules", needs_registry=True),
    Stage("promote", 3, "register the draft and set the alias `champion`", cached=False, needs_registry=True),
)

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)


def stage_named(name: str) -> Stage:
    """The stage called `name`; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]

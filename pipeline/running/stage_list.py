"""The stages of the loop, in order, with their versions. Standard library only; reads no config and runs nothing."""

from typing import NamedTuple


class Stage(NamedTuple):
    """One stage of the loop.

    `version` enters the content key of everything the stage writes: raise it when a fix changes what the stage writes.
    A stage that is not `cached` acts on the outside world (the registry) and runs again in every run.
    """

    name: str
    version: int
    summary: str
    cached: bool = True


STAGES: tuple[Stage, ...] = (
    Stage("pair", 4, "resolve and check the models"),
    Stage("corpus", 5, "read, clean and split the prompts"),
    Stage("generate", 5, "target completions and distributions"),
    Stage("distill", 4, "train the draft"),
    Stage("quantize", 2, "INT8, INT4, FP8 variants of the draft"),
    Stage("evaluate", 6, "teacher-forced acceptance, every draft length"),
    Stage("gate", 9, "apply the promotion rules"),
    Stage("promote", 1, "register the draft and set the alias `champion`", cached=False),
)

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)


def stage_named(name: str) -> Stage:
    """The stage called `name`; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]

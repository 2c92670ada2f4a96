"""The stages of the loop, in order, with their versions. Standard library only; knows no config and runs nothing."""

from typing import NamedTuple


class Stage(NamedTuple):
    """One stage of the loop.

    `version` enters the content key of everything the stage writes: raise it when a fix changes what would be written.
    A stage that is not `cached` acts on the outside world (the registry) and is asked again on every run.
    """

    name: str
    version: int
    summary: str
    cached: bool = True


STAGES: tuple[Stage, ...] = (
    Stage("pair", 1, "pins who plays"),
    Stage("corpus", 2, "a representative workload"),
    Stage("generate", 3, "the target plays its part"),
    Stage("distill", 3, "the understudy learns"),
    Stage("quantize", 1, "lighter costumes"),
    Stage("evaluate", 3, "the examination"),
    Stage("gate", 2, "pass or fail, never silently"),
    Stage("promote", 1, "goes on stage", cached=False),
)

STAGE_NAMES: tuple[str, ...] = tuple(stage.name for stage in STAGES)


def stage_named(name: str) -> Stage:
    """The stage called `name`; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]

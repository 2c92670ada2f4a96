"""What a run would do, from what is in the store now: nothing is hashed, built or written."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.errors import RegistryUnavailable
from pipeline.progress import Progress
from pipeline.registry.mlflow_client import tracking_location
from pipeline.registry.registry import registry_for
from pipeline.running.after_stage import after_stage
from pipeline.running.begin import champion_input
from pipeline.running.certain_refusals import of_config, stop_or_warn
from pipeline.running.inputs import known_inputs
from pipeline.running.jobs import Job
from pipeline.running.plan import Plan
from pipeline.running.stage_list import STAGE_NAMES, stage_named
from pipeline.store.artifacts import Store
from pipeline.store.runs import OutsideInput

BUILD, REUSE, REFUSED, RUN = "build", "reuse", "reuse: refused", "run"


@dataclass(frozen=True)
class PlannedJob:
    """A job, and what a run does with it: build its artifact, reuse the one in the store, or run it in any case."""

    job: Job
    action: str


def preview(config: Config, store: Store, first: str = STAGE_NAMES[0], last: str = STAGE_NAMES[-1]) -> list[PlannedJob]:
    """The jobs up to the stage `last`, in the order in which a run does them. UsageError as `known_inputs`, and where a job of a
    stage before `first` is not in the store."""
    known = known_inputs(config, store)
    plan, planned = Plan(config, store, known | _champion(config, known, store)), list[PlannedJob]()
    for step in plan.steps(last):
        artifact = step.find()
        if artifact is not None:
            plan.take(step, artifact)
        elif STAGE_NAMES.index(step.job.stage) < STAGE_NAMES.index(first):
            raise step.missing()
        action = BUILD if artifact is None else REFUSED if artifact.refused else REUSE
        planned.append(PlannedJob(step.job, action if stage_named(step.job.stage).cached else RUN))
    return planned


def require_stored_prompts(config: Config, store: Store, progress: Progress, go_on: bool) -> bool:
    """Whether the store has the prompts of this config, whose number is then exact. UsageError where it makes a refusal certain,
    unless `go_on`."""
    plan, refusals = Plan(config, store, known_inputs(config, store)), of_config(config)
    for step in plan.steps("corpus"):
        artifact = step.find()
        if artifact is None:
            return False
        refusals += after_stage(step.job.stage, plan.config, artifact.path).refusals
        plan.take(step, artifact)
    stop_or_warn(refusals, progress, go_on)
    return True


def _champion(config: Config, known: Mapping[str, OutsideInput], store: Store) -> dict[str, OutsideInput]:
    """Asked only where a registry is: opening one takes seconds. A registry that does not answer is reported by the run."""
    if not tracking_location(config, store).exists:
        return {}
    try:
        return champion_input(config, known, registry_for(config, store))
    except RegistryUnavailable:
        return {}

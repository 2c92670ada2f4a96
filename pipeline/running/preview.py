"""What a run would do, from what is in the store now: nothing is hashed, built or written."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.root import Config
from pipeline.errors import RegistryUnavailable, UsageError
from pipeline.registry.mlflow_client import tracking_location
from pipeline.registry.registry import registry_for
from pipeline.running.after_stage import after_stage
from pipeline.running.begin import champion_input
from pipeline.running.digests import digest_of
from pipeline.running.inputs import known_inputs
from pipeline.running.jobs import Job, expand
from pipeline.running.stage_list import STAGE_NAMES, stage_named
from pipeline.store.artifacts import Artifact, Store
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
    outside = known_inputs(config, store) | _champion(config, store)
    built: dict[str, Artifact] = {}
    jobs, planned = expand(config, outside), list[PlannedJob]()
    start, end = STAGE_NAMES.index(first), STAGE_NAMES.index(last)
    while len(planned) < len(jobs) and (position := STAGE_NAMES.index(jobs[len(planned)].stage)) <= end:
        job = jobs[len(planned)]
        stage, artifact = stage_named(job.stage), _find(job, outside, built, store)
        if artifact is not None:
            built[job.id] = artifact
            if stage.completes_config:
                jobs = expand(after_stage(job.stage, config, artifact.path).config, outside)
        elif position < start:
            raise not_built(job, store)
        found = BUILD if artifact is None else REFUSED if artifact.refused else REUSE
        planned.append(PlannedJob(job, found if stage.cached else RUN))
    return planned


def not_built(job: Job, store: Store) -> UsageError:
    """Of a job before the first one that was asked for."""
    return UsageError(
        f"{job.id} is not in {store.root} for this config; make it first: leave --from out, or `understudy stage {job.stage}`"
    )


def _champion(config: Config, store: Store) -> dict[str, OutsideInput]:
    """Asked only where a registry is: opening one takes seconds. A registry that does not answer is said by the run."""
    if not tracking_location(config, store).exists:
        return {}
    try:
        return champion_input(registry_for(config, store))
    except RegistryUnavailable:
        return {}


def _find(
    job: Job, outside: Mapping[str, OutsideInput], built: Mapping[str, Artifact], store: Store
) -> Artifact | None:
    """None also where an input of the job is still to be built."""

    def digest(reference: str) -> str | None:
        source, _, part = reference.partition("#")
        if source == "outside":
            return outside[part].digest
        return digest_of(built[source], part) if source in built else None

    job = job.decided(digest)
    digests = {name: found for name, reference in job.reads.items() if (found := digest(reference)) is not None}
    return store.find(job.stage, job.key(digests)) if len(digests) == len(job.reads) else None

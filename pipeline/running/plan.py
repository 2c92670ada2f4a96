"""The plan of a run: its jobs in order, each with its key and its artifact. Nothing is built, hashed or written.

A plan is walked, because the key of a job depends on the artifacts before it, and the pair decides which jobs there are. The
runner builds what a walk does not find, a task of a scheduler makes a share of it, a preview and `store gc` only look.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline.config.root import Config
from pipeline.config.stored import given_config
from pipeline.errors import UsageError
from pipeline.judgement.age import examination_age
from pipeline.judgement.schema import ChampionVersion
from pipeline.models.places import model_places
from pipeline.running.after_stage import after_stage
from pipeline.running.jobs import AGE, CAN_BE_COMPUTED, LENGTH, SHAPE, Job, jobs_of
from pipeline.running.speed_inputs import computable, length_of, shape_of
from pipeline.running.stage_list import STAGE_NAMES, stage_named
from pipeline.store.artifacts import Artifact, Store, age_in_days
from pipeline.store.runs import OutsideInput, RunRecord

OF_ARTIFACT = {LENGTH: length_of, CAN_BE_COMPUTED: computable}


@dataclass(frozen=True)
class Step:
    """One job of a plan, as the artifacts before it let it be known."""

    job: Job
    digests: Mapping[str, str]  # of what it reads, by the name of the input; without inputs that are still to be built
    store: Store

    @property
    def is_known(self) -> bool:
        """Whether it has a key: all inputs are known."""
        return len(self.digests) == len(self.job.reads)

    @cached_property
    def key(self) -> str:
        """Content key. Only of a step that is known."""
        assert self.is_known, f"{self.job.id}: {sorted(self.job.reads.keys() - self.digests.keys())} not known"
        return self.job.key(self.digests)

    @property
    def name(self) -> str:
        """The name of the artifact's directory, and of the lock under which it is built. Only of a step that is known."""
        return f"{self.job.stage}-{self.key}"

    def find(self, check: bool = True) -> Artifact | None:
        """The artifact, if the store has it now. `check`: its files, by size and mtime."""
        return self.store.find(self.job.stage, self.key, check) if self.is_known else None

    def missing(self) -> UsageError:
        """The error for a step whose artifact is not there, before the first one that was asked for."""
        return UsageError(
            f"{self.job.id} is not in {self.store} for this config; make it first: leave --from out, or `understudy stage "
            f"{self.job.stage}`"
        )


class Plan:
    """The jobs of a config, with the pinned inputs `outside`, and what `store` has of them.

    Who walks the steps takes each one whose artifact is there, found or built: later steps read it. `config` is the config with
    what the pair decides, once the pair is taken.
    """

    def __init__(self, config: Config, store: Store, outside: Mapping[str, OutsideInput]) -> None:
        self.config, self.store, self.outside = config, store, outside
        self._keys: dict[str, str] = {}  # by job
        self._artifacts: dict[str, Artifact] = {}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, as far as the config is known now."""
        if "champion" not in self.outside:
            return jobs_of(self.config)
        facts = self.outside["champion"].facts
        return jobs_of(self.config, ChampionVersion(facts["name"], str(facts["version"])))

    def steps(self, last: str = STAGE_NAMES[-1]) -> Iterator[Step]:
        """Those up to the stage `last`, in the order in which a run does them."""
        end, done = STAGE_NAMES.index(last), 0
        while done < len(jobs := self.jobs) and STAGE_NAMES.index(jobs[done].stage) <= end:
            yield self._step(jobs[done])
            done += 1

    def take(self, step: Step, artifact: Artifact) -> None:
        """The artifact of a step, which later steps read. UsageError as `after_stage`."""
        self._artifacts[step.job.id] = artifact
        if stage_named(step.job.stage).completes_config:
            self.config = after_stage(step.job.stage, self.config, artifact.path).config

    def artifact(self, job_id: str) -> Artifact:
        """The artifact of a step that was taken."""
        return self._artifacts[job_id]

    def _step(self, job: Job) -> Step:
        digests = {name: self._digest(reference) for name, reference in job.reads.items()}
        step = Step(job, {name: digest for name, digest in digests.items() if digest is not None}, self.store)
        if step.is_known:
            self._keys[job.id] = step.key
        return step

    def _digest(self, reference: str) -> str | None:
        """The digest of an input (`jobs.py`), which enters the key; None where it is still to be built. The key of an artifact is
        known before the artifact is there."""
        source, _, part = reference.partition("#")
        if source == "outside":
            pinned = self.outside.get(part.removeprefix(SHAPE))
            if pinned is None:
                return None
            # A champion that an older version registered has no shape in its tags: it shares with no other draft.
            return pinned.facts.get("shape") or pinned.digest if part.startswith(SHAPE) else pinned.digest
        if not part:
            return self._keys.get(source)
        artifact = self._artifacts.get(source)
        if artifact is None:
            return None
        if part.startswith(AGE):
            return examination_age(age_in_days(artifact.path), int(part.removeprefix(AGE))).verdict
        if part.startswith(SHAPE):
            return shape_of(artifact, part.removeprefix(SHAPE), model_places(self.config.pair))
        if part in OF_ARTIFACT:
            return OF_ARTIFACT[part](artifact)
        return artifact.provides.get(part)


def plan_of(record: RunRecord, store: Store) -> Plan:
    """The plan of a run from its given config: what the pair decides is found again. UsageError for a record of another
    version."""
    return Plan(given_config(record), store, record.outside)

"""Which artifacts a run needs: those in its record, and those whose keys follow from its config and its pinned inputs."""

from typing import NamedTuple

from pipeline.errors import UnderstudyError
from pipeline.running.plan import plan_of
from pipeline.running.stage_list import STAGE_NAMES
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord


class Needs(NamedTuple):
    """Names of directories under `artifacts/`. In the stages `unknown` the run needs more: their keys depend on artifacts that
    are not built yet."""

    artifacts: frozenset[str]
    unknown: frozenset[str]


def needs_of(store: Store, record: RunRecord) -> Needs:
    """A run that starts late, or has just begun, has few artifacts in its record but reads those of all stages."""
    recorded, steps = frozenset(entry.directory_name for entry in record.jobs.values()), []
    try:
        plan = plan_of(record, store)
        for step in plan.steps():
            steps.append(step)
            if (artifact := step.find(check=False)) is not None:
                plan.take(step, artifact)
    except UnderstudyError:  # a record of another version, or a damaged artifact
        return Needs(recorded, frozenset(STAGE_NAMES))
    known = recorded.union(step.name for step in steps if step.is_known)
    return Needs(known, frozenset(step.job.stage for step in steps if not step.is_known))

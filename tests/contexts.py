"""The context of a stage, from a config: what the runner hands it."""

from pathlib import Path
from typing import Any

from pipeline.config.root import Config
from pipeline.registry.registry import registry_for
from pipeline.running.context import StageContext, resources_of
from pipeline.running.jobs import jobs_of
from pipeline.store.artifacts import Store
from tests.fakes import quiet


def settings_of(config: Config, job: str) -> Any:
    """The settings of the job `job`."""
    return next(one.settings for one in jobs_of(config) if one.id == job)


def stage_context(config: Config, job: str, store: Path, out: Path, **rest: Any) -> StageContext[Any]:
    """`rest`: fields of the context; inputs, digests and facts are empty unless they are given."""
    empty: dict[str, Any] = {"inputs": {}, "digests": {}, "facts": {}, "run_id": "run", "progress": quiet()}
    return StageContext(
        **{
            "settings": settings_of(config, job),
            "resources": resources_of(config, registry_for(config, Store(store))),
            "job_id": job,
            "out": out,
            "store": Store(store),
            **empty,
            **rest,
        }
    )

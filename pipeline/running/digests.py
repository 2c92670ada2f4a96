"""What an artifact gives to the keys of later jobs."""

from pipeline.judgement.age import examination_age
from pipeline.running.jobs import AGE
from pipeline.store.artifacts import Artifact, age_in_days


def digest_of(artifact: Artifact, name: str) -> str | None:
    """The digest that the part after `#` of a reference names (`jobs.py`); without one, the artifact's key. None where the
    artifact provides no such thing."""
    if name.startswith(AGE):
        return examination_age(age_in_days(artifact.path), int(name.removeprefix(AGE))).verdict
    return artifact.provides.get(name) if name else artifact.key

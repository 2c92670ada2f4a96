"""Drafts as the registry has them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.store.times import utc_now

CHAMPION, PREVIOUS, CHALLENGER = "champion", "previous", "challenger"
ALIASES = (CHAMPION, PREVIOUS, CHALLENGER)


@dataclass(frozen=True, kw_only=True)
class TargetIdentity:
    """The target that a draft is a draft of. `place`: a hub id, an absolute path, `reference`, or what a server reports that it
    serves. `content` and `tokenizer` are digests. Empty is what is not known."""

    place: str = ""
    content: str = ""
    tokenizer: str = ""
    source: str = ""  # the place as a config wrote it


@dataclass(frozen=True, kw_only=True)
class RegisteredDraft:
    """A version in the registry. `change` is the number of the change that made it champion, 0 if none did."""

    name: str
    version: str
    digest: str = ""
    change: int = 0
    run: str = ""  # the Understudy run that promoted it
    mlflow_run: str = ""  # the MLflow run its figures are logged in
    shape: str = ""  # of its weights (`models/step_shape.py`); empty where an older version registered it
    target: TargetIdentity = TargetIdentity()  # that it is a draft of


@dataclass(frozen=True)
class Withdrawn:
    """A version that stays out of use until a person promotes it again. `what`: since when and why."""

    version: str
    what: str  # such as `rolled back at TIME`


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """A version that was registered for approval, and the aliases as they are."""

    version: str
    approve_before: str
    rolled_back: str  # when; empty if it was not
    challenger: str
    champion: str

    @property
    def is_overdue(self) -> bool:
        return self.approve_before < utc_now()


@dataclass(frozen=True)
class RegisteredVersion:
    """A version as MLflow lists it."""

    version: str
    aliases: tuple[str, ...]
    tags: Mapping[str, str]

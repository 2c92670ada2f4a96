"""What is asked of a registry: one registered model, typed. Values are plain, and each change is one write. Applies no rules.

`mlflow_port.py` answers with MLflow. Tests have an answer in memory, which the same test holds equal to MLflow's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pipeline.registry.aliases import Entry, Write
from pipeline.registry.packaging import Package


@dataclass(frozen=True)
class VersionRecord:
    """A version as the registry has it. `source`: where its files are; `mlflow_run`: the run its figures are logged in."""

    version: str
    tags: Mapping[str, str]
    source: str
    mlflow_run: str


@dataclass(frozen=True)
class RegistryPrompt:
    """A claim as the registry has it. `created`: seconds since 1970, by the clock of the server."""

    name: str
    tags: Mapping[str, str]
    created: float


class Port(Protocol):
    """One registered model. What cannot be done, such as an alias on a version that is not there, raises what becomes
    RegistryUnavailable outside the block that opened the port."""

    @property
    def name(self) -> str:
        """The name of the registered model."""

    def read(self) -> Entry:
        """Aliases, tags and versions as they are now; empty if nothing was registered yet."""

    def aliases(self) -> dict[str, str]:
        """The versions of the aliases as they are now, in one request."""

    def write(self, write: Write) -> None:
        """Apply one write."""

    def version(self, version: str) -> VersionRecord:
        """UnderstudyError if there is no such version."""

    def files_of(self, version: str) -> str:
        """Where the files of a version are: a path or a URI. UnderstudyError as `version`."""

    def register(self, package: Package) -> str:
        """Upload a draft and create its version, which is returned; the number of a deleted one is not used again. Sets no
        alias."""

    def create_prompt(self, name: str, tags: Mapping[str, str], description: str) -> bool:
        """False if there is a prompt or a model of that name."""

    def prompt(self, name: str) -> RegistryPrompt | None:
        """None if there is none of that name."""

    def prompts(self, prefix: str) -> list[RegistryPrompt]:
        """Those whose names begin with `prefix`."""

    def delete_prompt(self, name: str) -> None:
        """Does nothing if there is none."""

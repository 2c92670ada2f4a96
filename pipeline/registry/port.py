"""One registered model of MLflow, typed: what is read as plain values, what is written one write at a time.

The only module that reads or changes aliases, tags and versions through MLflow's client. Applies no rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UnderstudyError
from pipeline.registry.aliases import Alias, Entry, ModelTag, VersionTag, Write
from pipeline.registry.mlflow_client import EXISTS, MISSING, Location, error_code
from pipeline.registry.packaging import Package, register

_IS_PROMPT = "tags.`mlflow.prompt.is_prompt` = 'true'"
_PAGE = 1000


@dataclass(frozen=True)
class VersionRecord:
    """A version as MLflow has it. `source`: where its files are; `mlflow_run`: the run its figures are logged in."""

    version: str
    tags: Mapping[str, str]
    source: str
    mlflow_run: str


@dataclass(frozen=True)
class Prompt:
    """A claim as MLflow has it. `created`: seconds since 1970, by the clock of the server."""

    name: str
    tags: Mapping[str, str]
    created: float


class Port:
    """The registered model `name` at `location`. Its methods raise what MLflow raises, except where they say otherwise."""

    def __init__(self, client: Any, location: Location, name: str) -> None:
        self._client, self.location, self.name = client, location, name

    def read(self) -> Entry:
        """Aliases, tags and versions as they are now; empty if nothing was registered yet."""
        model = _or_none(lambda: self._client.get_registered_model(self.name))
        if model is None:
            return Entry()
        return Entry(
            aliases=_aliases(model),
            tags=dict(model.tags),
            versions=self._versions(),
        )

    def aliases(self) -> dict[str, str]:
        """The versions of the aliases as they are now, in one request."""
        model = _or_none(lambda: self._client.get_registered_model(self.name))
        return {} if model is None else _aliases(model)

    def write(self, write: Write) -> None:
        """Apply one write."""
        match write:
            case Alias(alias, ""):
                self._client.delete_registered_model_alias(self.name, alias)
            case Alias(alias, version):
                self._client.set_registered_model_alias(self.name, alias, version)
            case ModelTag(key, value):
                self._client.set_registered_model_tag(self.name, key, value)
            case VersionTag(version, key, None):
                self._client.delete_model_version_tag(self.name, version, key)
            case VersionTag(version, key, value):
                self._client.set_model_version_tag(self.name, version, key, value)

    def version(self, version: str) -> VersionRecord:
        """UnderstudyError if there is no such version."""
        found = _or_none(lambda: self._client.get_model_version(self.name, version))
        if found is None:
            raise UnderstudyError(
                f"{self.name} has no version {version} in {self.location.uri}: it was deleted; run again"
            )
        return VersionRecord(str(found.version), dict(found.tags), str(found.source), found.run_id or "")

    def files_of(self, version: str) -> str:
        """Where the files of a version are: a path or a URI. UnderstudyError as `version`."""
        source = self.version(version).source
        if source.startswith("models:/"):
            return str(self._client.get_logged_model(source.removeprefix("models:/")).artifact_location)
        return source

    def register(self, package: Package) -> str:
        """Upload a draft and create its version, which is returned. Sets no alias."""
        return register(self._client, self.location, self.name, package)

    def create_prompt(self, name: str, tags: Mapping[str, str], description: str) -> bool:
        """False if there is a prompt or a model of that name."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_prompt(name, tags=dict(tags), description=description)
        except MlflowException as error:
            if error_code(error) in (EXISTS, MISSING):  # MISSING: deleted while the server handled the request
                return False
            raise
        return True

    def prompt(self, name: str) -> Prompt | None:
        """None if there is none of that name."""
        found = _or_none(lambda: self._client.get_prompt(name))
        return None if found is None else _prompt(found)

    def prompts(self, prefix: str) -> list[Prompt]:
        """Those whose names begin with `prefix`."""
        listed = f"name LIKE '{prefix}%' AND {_IS_PROMPT}"
        return [_prompt(one) for one in _pages(self._client.search_registered_models, listed)]

    def delete_prompt(self, name: str) -> None:
        """Does nothing if there is none."""
        _or_none(lambda: self._client.delete_prompt(name))

    def _versions(self) -> dict[str, dict[str, str]]:
        listed = _pages(self._client.search_model_versions, f"name = '{self.name}'")
        found = {str(one.version): dict(one.tags) for one in listed}
        return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _aliases(model: Any) -> dict[str, str]:
    return {str(alias): str(version) for alias, version in dict(model.aliases).items()}


def _pages(search: Callable[..., Any], wanted: str) -> Iterator[Any]:
    """Everything that a search of MLflow finds, page by page."""
    token = None
    while True:
        page = search(wanted, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _prompt(found: Any) -> Prompt:
    return Prompt(str(found.name), dict(found.tags), int(found.creation_timestamp) / 1000)


def _or_none(call: Any) -> Any:
    """What `call` returns, or None where MLflow says that it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        if error_code(error) == MISSING:
            return None
        raise

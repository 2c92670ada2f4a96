"""The registry's port over MLflow: the only module that reads or changes aliases, tags and versions through MLflow's client."""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.registry.aliases import Alias, Entry, ModelTag, VersionTag, Write
from pipeline.registry.mlflow_client import EXISTS, MISSING, Location, answering, client_for, error_code
from pipeline.registry.packaging import Package, register
from pipeline.registry.port import Port, Prompt, VersionRecord

_IS_PROMPT = "tags.`mlflow.prompt.is_prompt` = 'true'"
_PAGE = 1000


@contextlib.contextmanager
def opened(location: Location, name: str) -> Iterator[Port]:
    """The registered model `name` at `location`. Raises RegistryUnavailable, within seconds, where MLflow does not answer or an
    error of MLflow leaves the block."""
    client = client_for(location)
    with answering(location):
        yield MlflowPort(client, location, name)


class MlflowPort:
    """The registered model `name` at `location`. Its methods are those of `Port`, and raise what MLflow raises."""

    def __init__(self, client: Any, location: Location, name: str) -> None:
        self._client, self._location, self.name = client, location, name

    def read(self) -> Entry:
        model = self._model()
        if model is None:
            return Entry()
        versions = self._versions()
        return Entry(aliases=_aliases(model, versions), tags=dict(model.tags), versions=versions)

    def aliases(self) -> dict[str, str]:
        model = self._model()
        return {} if model is None else _aliases(model, self._versions())

    def write(self, write: Write) -> None:
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
        stored = _or_none(lambda: self._client.get_model_version(self.name, version))
        if stored is None:
            raise UnderstudyError(
                f"{self.name} has no version {version} in {self._location.uri}: it was deleted; run again"
            )
        return VersionRecord(str(stored.version), dict(stored.tags), str(stored.source), stored.run_id or "")

    def files_of(self, version: str) -> str:
        source = self.version(version).source
        if source.startswith("models:/"):
            return str(self._client.get_logged_model(source.removeprefix("models:/")).artifact_location)
        return source

    def register(self, package: Package) -> str:
        return register(self._client, self._location, self.name, package)

    def create_prompt(self, name: str, tags: Mapping[str, str], description: str) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_prompt(name, tags=dict(tags), description=description)
        except MlflowException as error:
            if error_code(error) in (EXISTS, MISSING):  # MISSING: deleted while the server handled the request
                return False
            raise
        return True

    def prompt(self, name: str) -> Prompt | None:
        prompt = _or_none(lambda: self._client.get_prompt(name))
        return None if prompt is None else _prompt(prompt)

    def prompts(self, prefix: str) -> list[Prompt]:
        listed = f"name LIKE '{prefix}%' AND {_IS_PROMPT}"
        return [_prompt(model) for model in _pages(self._client.search_registered_models, listed)]

    def delete_prompt(self, name: str) -> None:
        _or_none(lambda: self._client.delete_prompt(name))

    def _model(self) -> Any:
        """The registered model, or None. RegistryUnavailable for an answer about something else: it is none of MLflow, and would
        read as a model that has no champion."""
        model = _or_none(lambda: self._client.get_registered_model(self.name))
        if model is not None and model.name != self.name:
            raise RegistryUnavailable(
                f"MLflow at {self._location.uri} answers with {model.name!r} where {self.name} was asked for: no MLflow server "
                "answers there; correct the address"
            )
        return model

    def _versions(self) -> dict[str, dict[str, str]]:
        listed = _pages(self._client.search_model_versions, f"name = '{self.name}'")
        tags = {str(version.version): dict(version.tags) for version in listed}
        return dict(sorted(tags.items(), key=lambda item: int(item[0])))


def _aliases(model: Any, versions: Container[str]) -> dict[str, str]:
    """Those of versions that are there: servers before MLflow 3.17 keep the aliases of a deleted one."""
    return {str(alias): str(version) for alias, version in dict(model.aliases).items() if str(version) in versions}


def _pages(search: Callable[..., Any], wanted: str) -> Iterator[Any]:
    """Everything that a search of MLflow finds, page by page."""
    token = None
    while True:
        page = search(wanted, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _prompt(stored: Any) -> Prompt:
    return Prompt(str(stored.name), dict(stored.tags), int(stored.creation_timestamp) / 1000)


def _or_none(call: Any) -> Any:
    """What `call` returns, or None where MLflow reports that it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        if error_code(error) == MISSING:
            return None
        raise

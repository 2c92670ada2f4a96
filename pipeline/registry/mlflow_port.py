"""The registry's port over MLflow: the only module that reads or changes aliases, tags and versions through MLflow's client."""

import contextlib
import time
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.registry.aliases import Alias, Entry, ModelTag, VersionTag, Write
from pipeline.registry.mlflow_client import EXISTS, MISSING, Location, answering, client_for, error_code
from pipeline.registry.packaging import Package, register
from pipeline.registry.port import Port, RegistryPrompt, VersionRecord

_IS_PROMPT = "tags.`mlflow.prompt.is_prompt` = 'true'"
_PAGE = 1000
_MOST_PAGES, _SEARCH_SECONDS = 100, 300.0  # of a search; servers may give less than a page that is asked for
_MOST_DIGITS = 18  # of the number of a version


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
        if (str(stored.name), str(stored.version)) != (self.name, version):
            raise self._foreign(
                f"version {str(stored.version)!r} of {stored.name!r}", f"version {version} of {self.name}"
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

    def prompt(self, name: str) -> RegistryPrompt | None:
        prompt = _or_none(lambda: self._client.get_prompt(name))
        if prompt is not None and prompt.name != name:
            raise self._foreign(f"{prompt.name!r}", name)
        return None if prompt is None else self._prompt(prompt)

    def prompts(self, prefix: str) -> list[RegistryPrompt]:
        listed = f"name LIKE '{prefix}%' AND {_IS_PROMPT}"
        return [self._prompt(model) for model in self._pages(self._client.search_registered_models, listed)]

    def delete_prompt(self, name: str) -> None:
        _or_none(lambda: self._client.delete_prompt(name))

    def _model(self) -> Any:
        """The registered model, or None. RegistryUnavailable for an answer about something else: it is none of MLflow, and would
        read as a model that has no champion."""
        model = _or_none(lambda: self._client.get_registered_model(self.name))
        if model is not None and model.name != self.name:
            raise self._foreign(f"{model.name!r}", self.name)
        return model

    def _versions(self) -> dict[str, dict[str, str]]:
        listed = self._pages(self._client.search_model_versions, f"name = '{self.name}'")
        tags = {str(version.version): dict(version.tags) for version in listed}
        for number in tags:
            if not (number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS):
                raise self._foreign(f"version {number[:_MOST_DIGITS]!r} of {self.name}", "a number")
        return dict(sorted(tags.items(), key=lambda item: int(item[0])))

    def _prompt(self, model: Any) -> RegistryPrompt:
        if not model.creation_timestamp:  # a claim without one would be taken for an abandoned one
            raise RegistryUnavailable(f"MLflow at {self._location.uri} does not state when {model.name} was made")
        return RegistryPrompt(str(model.name), dict(model.tags), int(model.creation_timestamp) / 1000)

    def _pages(self, search: Callable[..., Any], wanted: str) -> Iterator[Any]:
        """Everything that a search of MLflow finds, page by page. RegistryUnavailable where it has no end."""
        token, seen, ends = None, set[str](), time.monotonic() + _SEARCH_SECONDS
        while True:
            page = search(wanted, max_results=_PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return
            if token in seen or len(seen) + 1 >= _MOST_PAGES or time.monotonic() > ends:
                raise RegistryUnavailable(
                    f"MLflow at {self._location.uri}: a search ({wanted}) has no end after {len(seen) + 1} pages"
                )
            seen.add(token)

    def _foreign(self, answer: str, asked: str) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"MLflow at {self._location.uri} answers with {answer} where {asked} was asked "
            "for: no MLflow server answers there; correct the address"
        )


def _aliases(model: Any, versions: Container[str]) -> dict[str, str]:
    """Those of versions that are there: servers before MLflow 3.17 keep the aliases of a deleted one."""
    return {str(alias): str(version) for alias, version in dict(model.aliases).items() if str(version) in versions}


def _or_none(call: Any) -> Any:
    """What `call` returns, or None where MLflow reports that it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        return call()
    except MlflowException as error:
        if error_code(error) == MISSING:
            return None
        raise

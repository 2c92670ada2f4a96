"""What is asked of MLflow, with a client that counts its pages."""

from collections.abc import Callable, Iterator
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import RegistryUnavailable
from pipeline.registry.mlflow_client import Location, client_for
from pipeline.registry.mlflow_port import MlflowPort
from pipeline.store.artifacts import Store


class _Page(list[Any]):
    token: str | None = None


class _Client:
    """Has 250 prompts, and gives at most 100 in one answer, as MLflow's store does when it is asked for more than it allows."""

    def search_registered_models(self, wanted: str, max_results: int, page_token: str | None = None) -> _Page:
        first = int(page_token or 0)
        page = _Page(
            SimpleNamespace(name=f"claim-{number}", tags={}, creation_timestamp=1000 + number)
            for number in range(first, min(first + 100, 250))
        )
        page.token = str(first + 100) if first + 100 < 250 else None
        return page


def test_all_claims_are_listed(tmp_path: Path) -> None:
    """Abandoned ones fill several pages."""
    port = MlflowPort(_Client(), Location("sqlite:///x", None, "e", Store(tmp_path)), "name")

    assert [f"claim-{number}" for number in range(250)] == [prompt.name for prompt in port.prompts("claim-")]


class _Endless:
    """Each page names another one: one that came before, or one more."""

    def __init__(self, tokens: Iterator[str]) -> None:
        self._tokens, self.pages = tokens, 0

    def get_registered_model(self, name: str) -> Any:
        return SimpleNamespace(name=name, aliases={}, tags={})

    def search_registered_models(self, wanted: str, max_results: int, page_token: str | None = None) -> _Page:
        self.pages += 1
        page = _Page([SimpleNamespace(name=f"claim-{self.pages}", tags={}, creation_timestamp=1)])
        page.token = next(self._tokens)
        return page

    search_model_versions = search_registered_models


@pytest.mark.parametrize(("tokens", "pages"), [(repeat("x"), 2), (map(str, count()), 100)], ids=["again", "another"])
def test_a_search_has_an_end(tokens: Iterator[str], pages: int, tmp_path: Path) -> None:
    """Whoever asks holds locks that others wait for."""
    client = _Endless(tokens)
    port = MlflowPort(client, Location("http://x", None, "e", Store(tmp_path)), "name")

    with pytest.raises(RegistryUnavailable, match=f"http://x: .* has no end after {pages} pages"):
        port.prompts("claim-")
    assert pages == client.pages


class _Odd:
    """Answers with what it is given."""

    def __init__(self, **answer: Any) -> None:
        self._answer = SimpleNamespace(**{"name": "name", "tags": {}, "aliases": {}} | answer)

    def get_registered_model(self, name: str) -> Any:
        return SimpleNamespace(name=name, aliases={}, tags={})

    def search_model_versions(self, wanted: str, max_results: int, page_token: str | None = None) -> _Page:
        return _Page([self._answer])

    def get_model_version(self, name: str, version: str) -> Any:
        return self._answer

    def get_prompt(self, name: str) -> Any:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "ask", "said"),
    [
        (
            {"version": "abc"},
            lambda port: port.read(),
            "answers with version 'abc' of name where a number was asked for",
        ),
        (
            {"version": "9" * 5000},
            lambda port: port.read(),
            "answers with version '9999.* where a number was asked for",
        ),
        (
            {"version": ""},
            lambda port: port.version("7"),
            "answers with version '' of 'name' where version 7 of name was asked for",
        ),
        (
            {"version": "7", "name": ""},
            lambda port: port.version("7"),
            "answers with version '7' of '' where version 7",
        ),
        ({"creation_timestamp": 5}, lambda port: port.prompt("claim"), "answers with 'name' where claim was asked for"),
        ({"creation_timestamp": 0}, lambda port: port.prompt("name"), "does not state when name was made"),
    ],
    ids=["a word", "digits", "another version", "another name", "another claim", "no time"],
)
def test_an_answer_about_something_else_is_none(
    answer: dict[str, Any], ask: Callable[[MlflowPort], object], said: str, tmp_path: Path
) -> None:
    """A claim without a time would be taken for an old one, and taken over."""
    with pytest.raises(RegistryUnavailable, match=said):
        ask(MlflowPort(_Odd(**answer), Location("http://x", None, "e", Store(tmp_path)), "name"))


class _Dangling:
    """A model whose third version was deleted, as servers before MLflow 3.17 have it: its alias stays."""

    def get_registered_model(self, name: str) -> Any:
        return SimpleNamespace(name=name, aliases={"champion": "3", "previous": "1"}, tags={})

    def search_model_versions(self, wanted: str, max_results: int, page_token: str | None = None) -> _Page:
        return _Page(SimpleNamespace(version=number, tags={}) for number in (2, 1))


def test_an_alias_of_a_deleted_version_is_none(tmp_path: Path) -> None:
    """However it is asked for: a change compares both answers, and would take it for one that was moved by hand."""
    port = MlflowPort(_Dangling(), Location("sqlite:///x", None, "e", Store(tmp_path)), "name")

    assert {"previous": "1"} == port.aliases() == port.read().aliases


def test_without_mlflow_there_is_no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no server answers: a run goes on, and nothing is promoted."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RegistryUnavailable, match="mlflow is not installed"):
        client_for(Location("sqlite:///x", None, "e", Store(tmp_path)))

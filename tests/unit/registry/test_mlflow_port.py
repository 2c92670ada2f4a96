"""What is asked of MLflow, with a client that counts its pages."""

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
            SimpleNamespace(name=f"claim-{number}", tags={}, creation_timestamp=1000 * number)
            for number in range(first, min(first + 100, 250))
        )
        page.token = str(first + 100) if first + 100 < 250 else None
        return page


def test_all_claims_are_listed(tmp_path: Path) -> None:
    """Abandoned ones fill several pages."""
    port = MlflowPort(_Client(), Location("sqlite:///x", None, "e", Store(tmp_path)), "name")

    assert [f"claim-{number}" for number in range(250)] == [prompt.name for prompt in port.prompts("claim-")]


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

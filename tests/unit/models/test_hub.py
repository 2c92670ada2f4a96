"""The commit of a hub model, against a stand-in of the hub."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.hub import commit_of
from tests.standin_hub import standin_hub

COMMIT, OLD = "a1" * 20, "b2" * 20
MODELS = {"org/name": COMMIT, "org/name/revision/v1": OLD, "org/gated": "gated", "org/odd": "main"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with standin_hub(MODELS) as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield


@pytest.mark.usefixtures("hub")
def test_a_name_gets_its_commit() -> None:
    """Of the main branch, or of the branch or tag that is named."""
    assert COMMIT == commit_of("org/name", None)
    assert OLD == commit_of("org/name", "v1")


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("source", "revision", "complaint"),
    [
        ("org/none", None, "org/none: neither a directory here nor a model of the hub .*; check the name"),
        ("org/name", "v2", "org/name: the hub has no revision v2 of it"),
        ("org/gated", None, "org/gated: its owners give access .* HF_TOKEN"),
        ("org/odd", None, "the hub does not report its commit; write org/odd@ and the commit's 40 hex digits"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(source: str, revision: str | None, complaint: str) -> None:
    """With what to do."""
    with pytest.raises(UnderstudyError, match=complaint) as caught:
        commit_of(source, revision)
    assert "\n" not in str(caught.value)


def test_offline_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit needs no hub; without one, the commit in this machine's cache is named."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    snapshot = tmp_path / "models--org--cached" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--cached" / "refs").mkdir()
    (tmp_path / "models--org--cached" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))

    assert OLD == commit_of("org/name", OLD)
    with pytest.raises(
        UnderstudyError, match="write org/name@ and the commit's 40 hex digits, or give a local dir"
    ) as caught:
        commit_of("org/name", None)
    assert not isinstance(caught.value, UsageError)
    with pytest.raises(UnderstudyError, match=rf"\(this machine has org/cached@{COMMIT}\)"):
        commit_of("org/cached", None)

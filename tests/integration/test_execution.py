"""Completions generated in several processes are those of one, to the byte."""

import shutil

import pytest

from tests.integration.conftest import SMOKE, Place, Smoke

GENERATED = ("generate", "generate/before")


@pytest.fixture
def ungenerated(loop: Place) -> Place:
    """The smoke store without completions, and without what was made of them."""
    for path in (loop.store / "artifacts").iterdir():
        if path.name.partition("-")[0] not in ("pair", "corpus"):
            shutil.rmtree(path)
    return loop


def completions(place: Place) -> dict[str, dict[str, str]]:
    """SHA-256 of every file of the completions' artifacts."""
    return {name: files for name, files in place.contents().items() if name.startswith("generate-")}


def test_two_processes_generate_what_one_does(smoke: Smoke, ungenerated: Place) -> None:
    """And leave nothing beside it."""
    ended = ungenerated.process("run", SMOKE, "--until", "generate", "--run", "two", "--set", "execution.local=2")

    assert 0 == ended.code, ended.err
    assert {"pair": "skipped", "corpus": "skipped"} | dict.fromkeys(GENERATED, "done") == ended.states
    assert completions(smoke.place) == completions(ungenerated)
    assert [] == [*(ungenerated.store / "parts").iterdir(), *(ungenerated.store / "work").iterdir()]

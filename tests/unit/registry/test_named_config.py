"""A command about the champion takes the registered name in place of a config."""

from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UsageError
from pipeline.registry.named_config import find_config
from pipeline.registry.registry import naming, registered_name
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two runs of one name, one of another, and one whose config this version cannot read."""
    found = Store(tmp_path / "store")
    found.create()
    configs = [load_config(SMOKE, (f"promote.target_name={name}", f"seed={seed}")) for name, seed in _RUNS]
    for number, config in enumerate(configs):
        _record(f"r{number}", number, config.model_dump(mode="json")).save(found)
    _record("old", 9, {"name": "smoke"}).save(found)
    return found


_RUNS = (("chat", 1), ("chat", 2), ("code", 3))


def _record(run: str, second: int, config: dict[str, object]) -> RunRecord:
    return RunRecord(id=run, name="smoke", created=f"2026-01-01T00:00:0{second}Z", config=config, outside={})


@pytest.mark.parametrize(("given", "seed"), [("chat-draft", 2), ("chat-draft@champion", 2), ("code-draft", 3)])
def test_a_name_stands_for_the_config_of_its_latest_run(store: Store, given: str, seed: int) -> None:
    """As `understudy runs` and the registry show it."""
    assert seed == find_config(given, (), store).seed


def test_a_file_is_read_with_its_overrides(store: Store) -> None:
    """As before."""
    assert 7 == find_config(str(SMOKE), ("seed=7",), store).seed


@pytest.mark.parametrize(
    ("given", "overrides", "complaint"),
    [
        ("cat-draft", (), "no run in .* promotes under this name: there are code-draft, chat-draft"),
        ("chat-draft", ("seed=7",), "--set: chat-draft is a registered name, .*; give a config file"),
        ("chat.yaml", (), "chat.yaml: no such config file"),
        ("configs/chat", (), "configs/chat: no such config file"),
    ],
)
def test_what_is_neither_is_named(store: Store, given: str, overrides: tuple[str, ...], complaint: str) -> None:
    """With the names that there are."""
    with pytest.raises(UsageError, match=complaint):
        find_config(given, overrides, store)


@pytest.mark.parametrize(
    ("overrides", "name", "words"),
    [
        (("promote.target_name=chat",), "chat-draft", "promote.target_name, then -draft"),
        (
            ("promote.deployment=eu",),
            "reference-draft--eu",
            "the last part of pair.target.source, then -draft, then -- and",
        ),
        (
            (
                "pair.target={source: server, tokenizer: ./t}",
                "pair.draft={source: ./d}",
                "corpus.sources=[{path: p.jsonl}]",
                "generate.engine=server",
                "generate.server={endpoints: [{url: 'http://127.0.0.1:1'}], model: org/m}",
            ),
            "m-draft",
            "generate.server.model, then -draft",
        ),
    ],
)
def test_the_words_say_from_what_the_name_is_made(overrides: tuple[str, ...], name: str, words: str) -> None:
    """So that nobody wonders why a draft is not found."""
    config = load_config(SMOKE, overrides)
    assert (name, True) == (registered_name(config), naming(config).startswith(words))


def test_a_name_fits_into_mlflow_and_into_names_of_files() -> None:
    """A directory's name can have 255 characters, and others become escapes."""
    with pytest.raises(
        UsageError, match=r"has 206 characters, at most 180 are possible; set a shorter promote\.target_name"
    ):
        registered_name(load_config(SMOKE, [f"promote.target_name={'k' * 200}"]))

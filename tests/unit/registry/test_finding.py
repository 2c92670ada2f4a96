"""What a command was given by name is found: in the store, in the registry, here, or on the hub."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.loading import load_config
from pipeline.errors import UnderstudyError, UsageError
from pipeline.registry import finding
from pipeline.registry.aliases import _ROLLED_BACK, DIGEST, Entry
from pipeline.registry.draft_names import File, Registered, Run
from pipeline.registry.drafts import RegisteredDraft, RegisteredVersion
from pipeline.registry.finding import champion_config, config_of, find_draft, find_run, read_entry
from pipeline.registry.named import Draft
from pipeline.registry.registry import naming, registered_name
from pipeline.store.artifacts import Store
from pipeline.store.runs import RunRecord

SMOKE = Path(__file__).parents[3] / "configs" / "smoke.yaml"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Two runs of one name, one of another, and one whose config this version cannot read."""
    monkeypatch.chdir(tmp_path)
    found = Store(tmp_path / "store")
    found.create()
    for number, config in enumerate(_configs()):
        _record(f"r{number}", number, config).save(found)
    _record("old", 9, {"name": "smoke"}).save(found)
    return found


@cache
def _configs() -> list[dict[str, object]]:
    runs = (("chat", 1), ("chat", 2), ("code", 3))
    configs = [load_config(SMOKE, (f"promote.target_name={name}", f"seed={seed}")) for name, seed in runs]
    return [config.model_dump(mode="json") for config in configs]


def _record(run: str, second: int, config: dict[str, object]) -> RunRecord:
    return RunRecord(id=run, name="smoke", created=f"2026-01-01T00:00:0{second}Z", config=config, outside={})


@dataclass(frozen=True)
class _Registry:
    """Version 1 was champion, 2 is, 3 waits, and 4 was rolled back."""

    name: str
    location: Any
    fetched: list[str] = field(default_factory=list)

    def versions(self) -> list[RegisteredVersion]:
        if self.name not in ("chat-draft", "elsewhere-draft"):
            return []
        aliases = {"1": ("previous",), "2": ("champion",), "3": ("challenger",), "4": ()}
        return [RegisteredVersion(version, held, {}) for version, held in aliases.items()]

    def entry(self) -> Entry:
        tags: dict[str, dict[str, str]] = {version: {DIGEST: f"d{version}"} for version in "1234"}
        tags["4"][_ROLLED_BACK] = "noon"
        return Entry(aliases={"champion": "2", "previous": "1", "challenger": "3"}, versions=tags)

    def champion_at(self, version: str) -> RegisteredDraft:
        return RegisteredDraft(name=self.name, version=version, digest=f"d{version}", run="r1")

    def fetch(self, draft: RegisteredDraft, into: Path) -> Path:
        self.fetched.append(draft.version)
        return into


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A registry in memory; the versions whose files were fetched."""
    fetched = list[str]()
    monkeypatch.setattr(finding, "Registry", lambda name, location: _Registry(name, location, fetched))
    monkeypatch.setattr(finding, "registry_for", lambda config, _: _Registry(registered_name(config), None, fetched))
    monkeypatch.setattr(finding, "require_registry", lambda config, _: None)
    return fetched


def _config(given: str, store: Store, overrides: tuple[str, ...] = ()) -> Any:
    return config_of(read_entry(given, store), overrides, store)


@pytest.mark.parametrize(
    ("given", "seed"), [("chat-draft", 2), ("chat-draft@champion", 2), ("code-draft", 3), ("r0", 1), ("r2", 3)]
)
def test_a_name_stands_for_the_config_of_its_latest_run(store: Store, given: str, seed: int) -> None:
    """As `understudy runs` and the registry show it; a run stands for its own."""
    assert seed == _config(given, store).seed


def test_a_file_is_read_with_its_overrides(store: Store) -> None:
    """A path, also one without a separator or a suffix."""
    Path("plain").write_text(SMOKE.read_text())

    assert [7, 7] == [_config(given, store, ("seed=7",)).seed for given in (str(SMOKE), "plain")]
    assert [File(SMOKE), File(Path("plain"))] == [read_entry(given, store) for given in (str(SMOKE), "plain")]


@pytest.mark.parametrize(
    ("given", "overrides", "complaint"),
    [
        ("cat-draft", (), "no run in .* promotes under this name: there are code-draft, chat-draft; give CONFIG, RUN"),
        ("chat-draft", ("seed=7",), "--set: chat-draft has the config of its run; give a config file"),
        ("r1", ("seed=7",), "--set: r1 has the config of its run; give a config file"),
        ("chat.yaml", (), "chat.yaml: no such config file"),
        ("configs/chat", (), "configs/chat: no such config file"),
        (
            "chat",
            (),
            "chat: no run and no registered draft of .*store, and no directory here; did you mean chat-draft.; give CONFIG",
        ),
        ("store", (), "store: a directory or a model of the hub, and no registered draft; give CONFIG, RUN"),
        ("./store", (), "./store: a directory, and neither a config nor a registered draft; give CONFIG, RUN"),
        ("latest", (), "latest: this command does not guess its run; give CONFIG, RUN"),
        ("old", (), "old"),
    ],
)
def test_what_is_neither_is_named(store: Store, given: str, overrides: tuple[str, ...], complaint: str) -> None:
    """With the names that there are, or the forms that a config has."""
    with pytest.raises(UsageError, match=complaint):
        _config(given, store, overrides)


def test_the_latest_run_is_taken_where_nothing_follows_from_it(store: Store) -> None:
    """`champion export latest` writes a directory only."""
    assert Run("latest") == read_entry("latest", store, latest=True)


def test_a_command_about_the_champion_takes_its_version(store: Store, registry: list[str]) -> None:
    """By alias or number; another version is refused, with what can be done with it."""
    assert [2, 2, 2] == [
        champion_config(given, (), store).seed for given in ("chat-draft", "chat-draft@champion", "chat-draft@2")
    ]
    back = "or make it champion: `understudy champion rollback chat-draft --to 1`"
    for given, instead in {
        "chat-draft@1": back,
        "chat-draft@previous": back,
        "chat-draft@challenger": "or make it champion: `understudy promote chat-draft@challenger`",
        "chat-draft@4": "was rolled back at noon, which `understudy champion settle chat-draft` completes if needed",
    }.items():
        with pytest.raises(UsageError) as caught:
            champion_config(given, (), store)
        assert str(caught.value).startswith(
            f"{given}: not the champion of chat-draft (version 2 is), and this command is"
        )
        assert str(caught.value).endswith(instead)


def test_a_command_about_the_champion_takes_its_run(
    store: Store, registry: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config is that of this run, not of the latest; a run with another draft is refused."""
    digests = {"r0": "d2", "r1": "d1"}
    monkeypatch.setattr(
        finding,
        "run_draft",
        lambda store, record, variant: Draft(
            label=record.id, files=Path, store=store, run=record.id, known_digest=digests[record.id]
        ),
    )

    assert 1 == champion_config("r0", (), store).seed
    with pytest.raises(
        UsageError, match=r"r1: not the champion of chat-draft \(version 2 is\), .* give chat-draft, or make it"
    ):
        champion_config("r1", (), store)


@pytest.mark.parametrize(
    ("given", "version"),
    [
        ("chat-draft", "2"),
        ("chat-draft@champion", "2"),
        ("chat-draft@previous", "1"),
        ("chat-draft@3", "3"),
        ("elsewhere-draft", "2"),  # under which no run here promotes
    ],
)
def test_a_registered_draft_is_fetched_when_its_files_are_asked_for(
    store: Store, registry: list[str], given: str, version: str
) -> None:
    """Until then only its version is known."""
    draft = find_draft(given, store, "--draft")

    assert ([], version, f"d{version}", "r1") == (registry, draft.version, draft.digest, draft.run)
    assert f"{given.partition('@')[0]} version {version}" == draft.label
    assert (store.root / "champions" / f"d{version}", [version]) == (draft.directory, registry)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            "chat-draft@9",
            "chat-draft@9: no such version or alias in .*; it has previous, 1, champion, 2, challenger, 3",
        ),
        ("nobody-draft", "nobody-draft: no registered draft of this name in .*; the runs of .* promote .*chat-draft"),
        ("r0", "run r0 has no distill; finish it with `understudy run`"),
        ("store", "--draft store: not a model directory"),
        ("file", "--draft file: a file, and no draft; give RUN, NAME"),
    ],
)
def test_a_draft_that_is_not_there_is_named(store: Store, registry: list[str], given: str, complaint: str) -> None:
    """In one line."""
    Path("file").touch()
    with pytest.raises(UnderstudyError, match=complaint):
        find_draft(given, store, "--draft")


def test_an_entry_without_a_champion_is_said(
    store: Store, registry: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the versions that it has."""
    monkeypatch.setattr(_Registry, "versions", lambda self: [RegisteredVersion("1", (), {})])
    with pytest.raises(UsageError, match="chat-draft has no champion: nothing was promoted yet; it has 1; name one of"):
        find_draft("chat-draft", store)


def test_a_store_without_runs_knows_no_registry(tmp_path: Path) -> None:
    """The registry is the one that its runs use."""
    with pytest.raises(UsageError, match=r"x-draft@champion: .* has no run that names the registry; name another"):
        find_draft("x-draft", Store(tmp_path))


def test_a_model_of_the_hub_is_asked_for_when_it_is_needed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its commit, and then for its files."""
    asked = list[tuple[str, str | None]]()
    monkeypatch.setattr(finding, "commit_of", lambda source, revision: asked.append((source, revision)) or "c" * 40)
    monkeypatch.setattr(finding, "fetch", lambda source, commit: Path(source) / commit)
    drafts = [find_draft(given, store) for given in ("org/name", "org/name@main")]
    before = list(asked)

    assert ["org/name", "org/name@main"] == [draft.label for draft in drafts]
    assert [Path("org/name") / ("c" * 40)] * 2 == [draft.directory for draft in drafts]
    assert ([], [("org/name", None), ("org/name", "main")]) == (before, asked)


def test_what_a_run_stores_is_asked_of_a_draft_without_one(store: Store) -> None:
    """One line says which run is missing, or that none is known."""
    for run, version, complaint in (
        ("", "", "d: no run is known that trained it"),
        ("", "1", "d: its training run is not recorded; promote it again"),
        ("gone", "1", f"d: run gone, which trained it, is not in {store.root}; name the --store that holds it"),
        ("r1", "1", "d: run r1 has no decision; finish it with `understudy run`"),
    ):
        draft = Draft(label="d", files=lambda: Path(), store=store, run=run, version=version)
        assert not draft.is_examined
        with pytest.raises(UnderstudyError, match=complaint):
            assert draft.variant


def test_a_name_with_two_readings_is_warned_of(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with what names the other."""
    Path("r0").mkdir()

    assert Run("r0") == read_entry("r0", store)
    assert "warning: r0: the run is taken; the directory is ./r0\n" == capsys.readouterr().err.splitlines(True)[-1]


def test_a_version_is_read_with_its_name(store: Store) -> None:
    """Before any registry is asked."""
    assert Registered("chat-draft", "7") == read_entry("chat-draft@7", store)


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


def test_a_run_is_found_by_the_draft_that_it_trained(store: Store, registry: list[str]) -> None:
    """Or by its own name."""
    assert ["r1", "r0", "old"] == [find_run(given, store).id for given in ("chat-draft@2", "r0", None)]
    for given in ("./store", "org/name", "nobody"):
        with pytest.raises(UsageError, match=f"{given}: no run and no registered draft.*give RUN"):
            find_run(given, store)

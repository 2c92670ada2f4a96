"""One grammar names a draft in all commands: each takes each form, or says in one line which forms it takes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.export import plan
from pipeline.registry import finding
from pipeline.registry.draft_names import COMPARED_FORMS, CONFIG_FORMS, FORMS
from pipeline.registry.drafts import RegisteredDraft, RegisteredVersion
from pipeline.registry.registry import registered_name
from pipeline.store.artifacts import read_manifest
from tests.integration.conftest import RUN, SMOKE, Place, Smoke

NAME = "reference-draft"
UNKNOWN = "no run and no registered draft of"
Say = Callable[..., str]

# By form: what a command says that finds no draft. None: there is one.
DRAFTS: dict[str, str | None] = {
    RUN: None,
    "latest": None,
    NAME: None,
    f"{NAME}@champion": None,
    f"{NAME}@1": None,
    f"{NAME}@previous": f"{NAME}@previous: no such version or alias",
    f"{NAME}@9": f"{NAME}@9: no such version or alias",
    f"{NAME}/1": f"a version is written {NAME}@1",
    f"{NAME}@best": f"{NAME}@best: {UNKNOWN}",
    "directory": None,
    "./directory": None,
    "./empty": "./empty: not a model directory",
    "./nowhere": "./nowhere: no such directory; give ",
    "org/name": None,
    "org/name@main": None,
    "nobody": f"nobody: {UNKNOWN}",
}
# The same of a command about an entry of the registry.
ENTRIES: dict[str, str | None] = {
    RUN: None,
    NAME: None,
    f"{NAME}@champion": None,
    f"{NAME}@1": None,
    "smoke.yaml": None,
    "plain": None,
    f"{NAME}@previous": f"{NAME}@previous: no such version or alias",
    f"{NAME}@9": f"{NAME}@9: no such version or alias",
    "latest": f"latest: this command does not guess its run; give {CONFIG_FORMS}",
    "directory": f"directory: a directory or a model of the hub, and no registered draft; give {CONFIG_FORMS}",
    "./nowhere.yaml": "nowhere.yaml: no such config file",
    "org/name@main": "org/name@main: no such config file",
    "nobody": f"nobody: {UNKNOWN}",
    "other-draft": f"promotes under this name: there are {NAME}; give {CONFIG_FORMS}",
}
ABOUT_THE_CHAMPION = ("watch", "canary", *(f"champion {name}" for name in ("rollback", "settle", "verify", "history")))


class _Registry:
    """Version 1 is champion."""

    def __init__(self, name: str, digest: str) -> None:
        self.name, self.location, self._digest = name, SimpleNamespace(uri="memory"), digest

    def versions(self) -> list[RegisteredVersion]:
        return [RegisteredVersion("1", ("champion",), {})] if self.name == NAME else []

    def entry(self) -> Any:
        return SimpleNamespace(champion="1", version=lambda _: SimpleNamespace(digest=self._digest))

    def champion(self) -> RegisteredDraft:
        return self.champion_at("1")

    def champion_at(self, version: str) -> RegisteredDraft:
        return RegisteredDraft(name=self.name, version=version, digest=self._digest, run=RUN)


@pytest.fixture
def say(smoke: Smoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """What a command says, called beside a model and two configs, on the store of the smoke run, with a registry in memory."""
    digest = read_manifest(smoke.place.artifact("distill")).provides["draft"]
    monkeypatch.setattr(finding, "Registry", lambda name, location: _Registry(name, digest))
    monkeypatch.setattr(finding, "registry_for", lambda config, store: _Registry(registered_name(config), digest))
    place = Place(tmp_path).prepare()
    (place.cwd / "empty").mkdir()
    (place.cwd / "directory").symlink_to(smoke.place.artifact("distill") / "draft")
    for name in ("smoke.yaml", "plain"):
        (place.cwd / name).write_bytes(SMOKE.read_bytes())
    place.store.symlink_to(smoke.place.store)

    def call(command: str, *arguments: object) -> str:
        ended = place.understudy(*command.split(), *arguments)
        assert 2 == ended.code, ended.err
        return ended.complaint

    return call


@pytest.mark.parametrize("form", DRAFTS)
def test_a_command_with_a_draft_takes_every_form(say: Say, smoke: Smoke, form: str) -> None:
    """Where there is a draft, each goes on to the check of a device or of completions that are none."""
    pair, completions = smoke.place.artifact("pair"), smoke.place.artifact("generate")
    begin, missing = "--draft ", DRAFTS[form]
    for command, options in (
        ("probe", ("--target", pair, "--completions", completions, "--cost-ratio", 0.1, "--device", "nowhere")),
        ("decode", ("a prompt", "--target", pair, "--device", "nowhere")),
        ("profile", ("--target", pair, "--device", "nowhere")),
        (f"check {RUN}", ("--baseline", "new.json", "--completions", pair, "--update-baseline")),
    ):
        said = say(command, "--draft", form, *options)
        if missing is None:
            assert said.startswith(("device = 'nowhere'", f"--completions {pair}: not a generate artifact")), command
        else:
            assert missing in said, command
            assert said.startswith((begin, NAME)), command
    said = say(f"compare {form} {RUN} --completions", pair)
    assert (missing or f"--completions {pair}: not a generate artifact") in said


@pytest.mark.parametrize("form", ENTRIES)
def test_a_command_about_an_entry_takes_every_form(say: Say, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """All but the hub, a directory, and a run that is not named; `promote` looks at the version when it sees what waits."""
    real = finding.champion_config, finding.config_of

    def found(*arguments: Any) -> Any:
        raise UsageError(f"found {registered_name(real[0](*arguments))}")

    def found_config(*arguments: Any) -> Any:
        raise UsageError(f"found {registered_name(real[1](*arguments))}")

    monkeypatch.setattr(finding, "champion_config", found)
    for command in ABOUT_THE_CHAMPION:
        said = say(command, form)
        assert (ENTRIES[form] or f"found {NAME}") in said, command
    monkeypatch.setattr(finding, "config_of", found_config)
    missing = None if "@" in form and form.startswith(NAME) else ENTRIES[form]
    assert (missing or f"found {NAME}") in say("champion promote", form)


@pytest.mark.parametrize("form", [*ENTRIES, None])
def test_an_export_takes_a_run_an_entry_or_a_version(
    say: Say, monkeypatch: pytest.MonkeyPatch, form: str | None
) -> None:
    """And `latest`: it changes nothing. Without a name, the champion of the latest run's config."""

    def planned(draft: Any, *_: object) -> Any:
        raise UsageError(f"found {draft.label}")

    monkeypatch.setattr(plan, "plan_export", planned)
    said = say("champion export", *([] if form is None else [form]), "--engine", "vllm", "--out", "served")
    if form in (RUN, "latest"):
        assert said.startswith(f"found {RUN}")
    elif form == "other-draft":
        assert said.startswith("other-draft: no registered draft of this name")
    else:
        assert ((form and ENTRIES[form]) or f"found {NAME} version 1") in said


@pytest.mark.parametrize(
    ("command", "forms"),
    [
        (f"compare nobody {RUN}", COMPARED_FORMS),
        ("decode text --target org/t --draft nobody", FORMS),
        ("watch nobody", CONFIG_FORMS),
        ("champion export nobody --engine vllm --out o", CONFIG_FORMS),
        ("champion promote nobody", CONFIG_FORMS),
    ],
)
def test_a_name_of_nothing_is_told_all_forms(say: Say, command: str, forms: str) -> None:
    """The same list wherever the same is taken."""
    assert say(command).endswith(f"and no directory here; give {forms}")


def test_a_file_is_a_baseline_only_where_drafts_are_compared(say: Say) -> None:
    """Elsewhere it is no draft."""
    assert "plain: not valid JSON" in say(f"compare plain {RUN}")
    assert f"--draft plain: a file, and no draft; give {FORMS}" == say("decode text --target org/t --draft plain")


_COMMANDS = (
    f"compare nobody {RUN}",
    "probe --target t --draft nobody --completions .",
    "decode text --target org/t --draft nobody",
    "profile --target t --draft nobody",
    "watch nobody",
    "canary nobody",
    *(f"champion {name} nobody" for name in ("promote", "rollback", "settle", "verify", "history")),
    "champion export nobody --engine vllm --out o",
)


def test_a_name_is_parsed_before_anything_heavy_is_imported(smoke: Smoke, tmp_path: Path) -> None:
    """A name of nothing costs no import of torch, in any command."""
    code = f"""
import json, sys
from pipeline.cli import _main
codes = []
for command in {_COMMANDS!r}:
    sys.argv = ["understudy", *command.split(), "--store", {str(smoke.place.store)!r}]
    codes.append(_main())
print(json.dumps([codes, [name for name in ("torch", "transformers", "mlflow") if name in sys.modules]]))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert [[2] * len(_COMMANDS), []] == json.loads(ended.stdout), ended.stderr

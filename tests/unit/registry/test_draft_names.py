"""The grammar that names a draft: every form, what wins where there are two readings, and what a text that is none is told."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.registry.draft_names import (
    FORMS,
    Directory,
    File,
    Hub,
    Known,
    Named,
    Reading,
    Registered,
    Run,
    parse,
)

KNOWN = Known(store="/s", runs={"first", "both", "chat-draft"}, names={"both", "chat-draft", "code-draft", "out"})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("weights", "models/llama", "first", "out", "served-draft", "x-draft@1", "models/here@main"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "baseline.json").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("first-of-all", None),
        ("latest", Run("latest")),
        ("code-draft", Registered("code-draft")),
        ("code-draft@champion", Registered("code-draft", "champion")),
        ("code-draft@previous", Registered("code-draft", "previous")),
        ("anything@challenger", Registered("anything", "challenger")),
        ("code-draft@12", Registered("code-draft", "12")),
        ("elsewhere-draft", Registered("elsewhere-draft")),
        ("elsewhere-draft--eu", Registered("elsewhere-draft--eu")),
        ("elsewhere", None),
        ("weights", Directory(Path("weights"))),
        ("./weights", Directory(Path("weights"))),
        ("weights/", Directory(Path("weights"))),
        ("served-draft", Directory(Path("served-draft"))),
        ("models/llama", Directory(Path("models/llama"))),
        ("models/here@main", Directory(Path("models/here@main"))),
        (".", Directory(Path("."))),
        ("baseline.json", File(Path("baseline.json"))),
        ("./baseline.json", File(Path("baseline.json"))),
        ("org/name", Hub("org/name", None)),
        ("org/name@main", Hub("org/name", "main")),
        ("org/name@v1/x", Hub("org/name", "v1/x")),
        ("org/7@main", Hub("org/7", "main")),
        ("models/llama@main", Hub("models/llama", "main")),
    ],
)
def test_every_form(text: str, named: Named | None) -> None:
    """Each has one reading, without a note; None: it has none."""
    if named is None:
        with pytest.raises(UsageError):
            parse(text, KNOWN)
    else:
        assert Reading(named) == parse(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "named", "note"),
    [
        ("first", Run("first"), "first: the run is taken; the directory is ./first"),
        ("both", Run("both"), "both: the run is taken; the registered draft is both@champion"),
        ("chat-draft", Run("chat-draft"), "chat-draft: the run is taken; the registered draft is chat-draft@champion"),
        ("out", Registered("out"), "out: the registered draft is taken; the directory is ./out"),
        ("x-draft@1", Registered("x-draft", "1"), "x-draft@1: the version is taken; the directory is ./x-draft@1"),
    ],
)
def test_of_two_readings_one_wins_and_the_other_is_said(text: str, named: Named, note: str) -> None:
    """A word is a run, then a registered name, then what lies here; the note has the form that means the other."""
    other = note.rpartition(" is ")[2]

    assert Reading(named, note) == parse(text, KNOWN)
    assert named != parse(other, KNOWN).named


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nobody", f"no run and no registered draft of /s, and no directory here; give {FORMS}"),
        (
            "target",
            "no run .*; a draft of the target's layers is made by a run (`understudy init --draft target`); give",
        ),
        (
            "weihgts",
            f"no run and no registered draft of /s, and no directory here; did you mean weights?; give {FORMS}",
        ),
        (
            "code-draft@best",
            "no run .* here (best is neither a version nor one of champion, previous, challenger); give ",
        ),
        (
            "caht-draf",
            f"no run and no registered draft of /s, and no directory here; did you mean chat-draft?; give {FORMS}",
        ),
        ("~nouser/x", f"no such directory; give {FORMS}"),
        ("a" * 300, f"no run and no registered draft of /s, and no directory here; give {FORMS}"),
        ("", f"no run and no registered draft of /s, and no directory here; give {FORMS}"),
        ("code-draft/1", "a version is written code-draft@1, and a model of the hub of this name code-draft/1@main"),
        ("./nowhere", f"no such directory; give {FORMS}"),
        ("~/nowhere/x", f"no such directory; give {FORMS}"),
        (
            "modles/llama",
            "no such directory; did you mean models/llama?; if you mean a model of the hub, write modles/llama@main",
        ),
        (
            "models/qwen",
            "no such directory (models holds here@main, llama); if you mean a model of the hub, write models/qwen@main",
        ),
    ],
)
def test_what_names_nothing_is_told_the_forms(text: str, complaint: str) -> None:
    """In one line, with the option that it was given to."""
    with pytest.raises(UsageError) as caught:
        parse(text, KNOWN, "--draft")

    begin, _, end = complaint.partition(".*")
    assert str(caught.value).startswith(f"--draft {text}".strip() + f": {begin}")
    assert end in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())

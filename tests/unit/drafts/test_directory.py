"""A draft's model directory and its training prompts."""

from pathlib import Path

import pytest

from pipeline.config.pair import ModelSource, PairConfig
from pipeline.drafts.directory import (
    NOTHING,
    TRAINED_ON,
    TrainedOn,
    find_draft,
    seen_prompts,
    trained_on,
    trained_on_before,
)
from pipeline.errors import UnderstudyError
from pipeline.models.places import model_places
from pipeline.running.inputs import _model as _model_input
from pipeline.running.inputs import _NoDigests
from pipeline.store.files import write_json

REFERENCE, LOCAL = (
    model_places(PairConfig.model_validate({role: {"source": source} for role, source in sources.items()}))
    for sources in (
        {"target": "reference", "draft": "reference"},
        {"target": "/elsewhere/t", "draft": "/elsewhere/d"},
    )
)


def _model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_draft_is_found_in_an_artifact_or_named_itself(tmp_path: Path) -> None:
    """A distill artifact keeps it in draft/; a user may name the directory."""
    inside = _model(tmp_path / "artifact" / "draft")
    assert inside == find_draft(tmp_path / "artifact", REFERENCE) == find_draft(inside, REFERENCE)


def test_the_base_draft_lies_in_the_pair_or_where_the_config_says_now(tmp_path: Path) -> None:
    """A pair artifact never stores a path outside the store, since the directory may be moved."""
    write_json(tmp_path / "pair.json", {})
    assert tmp_path / "draft" == find_draft(tmp_path, REFERENCE)
    assert Path("/elsewhere/d") == find_draft(tmp_path, LOCAL)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    """A directory without config.json is one line."""
    with pytest.raises(UnderstudyError, match="not a model directory"):
        find_draft(tmp_path, REFERENCE)


def test_a_draft_without_training_prompts_cannot_be_evaluated(tmp_path: Path) -> None:
    """A trained draft must have trained_on.json; a base draft from elsewhere need not."""
    with pytest.raises(UnderstudyError, match=r"trained_on\.json is missing"):
        trained_on(tmp_path)
    assert NOTHING == trained_on_before(tmp_path)
    given = TrainedOn(frozenset("ab"), frozenset("xy"))
    given.write(tmp_path)
    assert given == trained_on(tmp_path) == trained_on_before(tmp_path)


def test_a_draft_has_seen_prompts_by_their_tokens_or_their_words(tmp_path: Path) -> None:
    """A list without texts, of an older draft, knows tokens only; several drafts together have seen what each has."""
    drafts = [_model(tmp_path / name) for name in ("one", "other")]
    write_json(drafts[0] / TRAINED_ON, {"prompts": ["a"]})
    TrainedOn(frozenset("b"), frozenset("xy")).write(drafts[1])
    examined = {"a": "x", "b": "other words", "c": "y", "d": "z"}

    assert {"a"} == trained_on(drafts[0]).among(examined)
    assert {"a", "b", "c"} == seen_prompts(drafts, REFERENCE).among(examined)


def test_a_draft_has_seen_what_its_base_draft_has_and_is_for_its_own_modes() -> None:
    """Otherwise a mode that was given up would be demanded of every later champion."""
    base = TrainedOn(frozenset("p"), frozenset("t"), frozenset("a"))
    own = TrainedOn(frozenset("q"), frozenset("u"), frozenset("b"))
    assert TrainedOn(frozenset("pq"), frozenset("tu"), frozenset("b")) == own.begun_from(base)


def test_several_drafts_have_the_modes_of_each() -> None:
    one, other = (TrainedOn(frozenset(), modes=frozenset(modes)) for modes in ("ab", "bc"))
    assert (one | other).modes == {"a", "b", "c"}


@pytest.mark.parametrize(
    "content", ["[]", "{}", "5", '{"prompts": 5}', '{"prompts": [5]}', '{"prompts": ["a"], "x": 1}', "{"]
)
def test_a_damaged_list_of_training_prompts_is_found_when_the_run_begins(tmp_path: Path, content: str) -> None:
    """Before generation is paid for: the inputs of the run are not resolved, and the line says what to put back."""
    model = _model(tmp_path / "model")
    (model / TRAINED_ON).write_text(content)
    with pytest.raises(UnderstudyError, match=r"trained_on\.json: .*put back the file that was written with the draft"):
        _model_input("draft", ModelSource(source=str(model)), _NoDigests())


def test_a_link_to_nowhere_is_no_missing_list(tmp_path: Path) -> None:
    """The draft was trained on something."""
    model = _model(tmp_path / "model")
    (model / TRAINED_ON).symlink_to(tmp_path / "nowhere")
    with pytest.raises(UnderstudyError, match=r"trained_on\.json: no such file"):
        trained_on_before(model)

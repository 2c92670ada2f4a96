"""`understudy check`: the regression check of CI, on the completions of the smoke run."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.integration.conftest import RUN, Ended, Place, Smoke, rename_token, replace_bytes


@pytest.fixture(scope="module")
def baseline(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """The baseline of the promoted draft. Nothing of this module writes to the store."""
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    return path, smoke.place.understudy(
        "check", "--draft", smoke.place.artifact("distill"), "--baseline", path, "--update-baseline"
    )


def _check(place: Place, draft: Path, baseline: Path, *more: object) -> Ended:
    return place.understudy("check", RUN, "--draft", draft, "--baseline", baseline, *more)


def test_same_draft_is_no_regression(smoke: Smoke, baseline: tuple[Path, Ended]) -> None:
    """The draft against its own baseline: no difference at all, exit 0; the baseline says how many prompts it has."""
    path, written = baseline
    prompts = len(json.loads(path.read_text())["prompts"])
    ended = _check(smoke.place, smoke.place.artifact("distill"), path)
    assert (0, f"baseline of {prompts} prompts written to {path}\n") == (written.code, written.out), written.err
    assert (0, "") == (ended.code, ended.err)
    assert "no regression: acceptance rate 0." in ended.out
    assert f"+0.00 points [+0.00, +0.00] over {prompts} prompts, margin 1" in ended.out


def test_noised_draft_is_a_regression(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """Noise on every weight costs acceptance: exit 3, both rates and the interval in one line."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "noised")
    weights = load_file(tmp_path / "noised" / "model.safetensors")
    chance = np.random.default_rng(7)
    noised = {
        name: (value + chance.normal(0, 2 * value.std() + 1e-3, value.shape)).astype(value.dtype)
        for name, value in weights.items()
    }
    save_file(noised, tmp_path / "noised" / "model.safetensors", metadata={"format": "pt"})
    ended = _check(smoke.place, tmp_path / "noised", baseline[0])
    assert 3 == ended.code, ended.err
    assert ended.complaint.startswith("regression: acceptance rate 0.")
    assert re.search(r"baseline 0\.\d{4}: -\d", ended.complaint)


def test_damaged_draft_is_a_regression(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """A draft of NaN cannot be examined: exit 3 like any draft that is worse."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "nan")
    replace_bytes(tmp_path / "nan" / "model.safetensors", lambda data: data[:-4096] + b"\xff" * 4096)
    ended = _check(smoke.place, tmp_path / "nan", baseline[0])

    assert 3 == ended.code, ended.err
    assert ended.complaint.startswith("regression: the draft returned NaN logits")


def test_baseline_of_other_conditions_is_refused(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """Figures of other settings are not compared: exit 2, and the settings that differ are named."""
    content = json.loads(baseline[0].read_text())
    content["conditions"] |= {"draft_sampling": "greedy", "completions": "generate-0"}
    (tmp_path / "other.json").write_text(json.dumps(content))
    ended = _check(smoke.place, smoke.place.artifact("distill"), tmp_path / "other.json")

    assert 2 == ended.code, ended.err
    assert ended.complaint.startswith(
        f"--baseline {tmp_path}/other.json: made with another completions, draft_sampling; use the same settings"
    )


def test_a_margin_is_a_share(smoke: Smoke, baseline: tuple[Path, Ended]) -> None:
    """A margin above 1 would pass every draft, and is refused."""
    ended = _check(smoke.place, smoke.place.artifact("distill"), baseline[0], "--margin", 1.5)
    assert 2 == ended.code
    assert "Invalid value for '--margin'" in ended.err


def test_missing_baseline_is_bad_usage(smoke: Smoke, tmp_path: Path) -> None:
    """A missing baseline exits 2 before any model is loaded, and the error says how to write one."""
    path = tmp_path / "none.json"
    ended, code, imported = smoke.place.spied("check", "--draft", smoke.place.artifact("distill"), "--baseline", path)
    assert (2, []) == (code, imported), ended.err
    assert f"--baseline {path}: no such file; write it with --update-baseline" == ended.complaint


def test_file_that_is_no_baseline_is_named(smoke: Smoke, tmp_path: Path) -> None:
    """A JSON file of another kind is an error."""
    (tmp_path / "other.json").write_text('{"schema": 99}')
    ended = _check(smoke.place, smoke.place.artifact("distill"), tmp_path / "other.json")
    assert 2 == ended.code, ended.err
    assert (
        f"{tmp_path}/other.json: a baseline of schema 99, and this version reads schema 2; "
        "examine the draft again and write it anew with --update-baseline"
    ) == ended.complaint


def test_draft_of_another_family_is_named(smoke: Smoke, baseline: tuple[Path, Ended], tmp_path: Path) -> None:
    """A draft whose tokenizer differs in one token is not examined: exit 1 and the token named."""
    shutil.copytree(smoke.place.artifact("distill") / "draft", tmp_path / "other")
    rename_token(tmp_path / "other" / "tokenizer.json")
    ended = _check(smoke.place, tmp_path / "other", baseline[0])
    assert 1 == ended.code, ended.err
    assert ended.complaint.startswith("draft and target have different tokenizers: token ")
    assert "choose a draft with the target's tokenizer" in ended.complaint

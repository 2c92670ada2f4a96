"""An acceptance.json or decision.json that was edited by hand: right types, and figures that cannot belong together."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.acceptance.profile_file import read_examination
from pipeline.acceptance.schema import DEPLOYED, FILE, ROWS
from pipeline.errors import UnderstudyError
from pipeline.judgement.decision_file import read_decision
from pipeline.judgement.schema import FILE as DECISION
from tests.decisions import make_decision
from tests.fakes import counted
from tests.profiles import profile_json

COUNTS = [counted(f"p{number}", 50.0 + number) for number in range(12)]


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def _drop_row(document: Any) -> None:
    del document[ROWS][DEPLOYED][1]


def _repeat_row(document: Any) -> None:
    document[ROWS][DEPLOYED][1]["id"] = document[ROWS][DEPLOYED][0]["id"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_drop_row, r"headline\.prompts is 12, and the rows have 11"),
        (_repeat_row, "a prompt has two rows"),
        (_set(ROWS, DEPLOYED, 0, "accepted", to=99.0), r"headline\.acceptance_rate is .*, and the rows give"),
        (_set(ROWS, DEPLOYED, 0, "rounds", to=[-1.0]), "greater than or equal to 0"),
        (_set("headline", "acceptance_rate", "value", to=1.5), "a share is from 0 to 1"),
        (_set("headline", "acceptance_rate", "low", to=5.0), "the lower bound 5 is above the upper bound"),
        (_set("headline", "prompts", to=-3), r"headline\.prompts"),
        (_set("headline", to=None), "either `broken` says why there are no figures"),
        (_set(ROWS, to={}), "no 'deployed'"),
    ],
)
def test_an_examination_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Callable[[Any], None], complaint: str
) -> None:
    """One line with the file and the figures."""
    document = json.loads(json.dumps(profile_json(COUNTS)))
    (tmp_path / FILE).write_text(json.dumps(document))
    assert 12 == len(read_examination(tmp_path).counts)
    change(document)
    (tmp_path / FILE).write_text(json.dumps(document))
    with pytest.raises(UnderstudyError, match=rf"acceptance\.json: not a complete acceptance profile \(.*{complaint}"):
        read_examination(tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("rules", 0, "verdict", to="fail"), "verdict is promote, and .* did not pass"),
        (_set("rules", to=[]), "verdict is promote, and there is no rule"),
        (
            _set("gains", "acceptance_rate", "value", to=0.9),
            r"gains\.acceptance_rate is 0\.9, and the drafts differ by",
        ),
        (_set("drafts", "candidate", "acceptance_rate", "value", to=7.0), "a share is from 0 to 1"),
        (_set("dropped_prompts", to=-1), "dropped_prompts"),
        (_set("confidence", to="high"), "confidence"),
    ],
)
def test_a_decision_that_contradicts_itself_is_refused(
    tmp_path: Path, change: Callable[[Any], None], complaint: str
) -> None:
    """A draft is not promoted by an edited file."""
    document = json.loads(json.dumps(asdict(make_decision())))
    (tmp_path / DECISION).write_text(json.dumps(document))
    read_decision(tmp_path)
    change(document)
    (tmp_path / DECISION).write_text(json.dumps(document))
    with pytest.raises(UnderstudyError, match=rf"decision\.json: not a complete decision \(.*{complaint}"):
        read_decision(tmp_path)

"""The regression check against a committed baseline."""

import json

import numpy as np
import pytest

from pipeline.acceptance.profile import PromptCounts
from pipeline.errors import UnderstudyError, UsageError
from pipeline.judgement.regression import baseline_json, compare, read_baseline
from tests.fakes import counted


def _counts(loss: float = 0.0, spread: float = 0.0) -> list[PromptCounts]:
    """Twenty prompts at 60 to 80%, each `loss` points worse, give or take `spread`."""
    level = np.linspace(60, 80, 20)
    wobble = spread * np.tile([1, -1], 10)
    return [counted(f"p{n}", float(level[n] - loss + wobble[n])) for n in range(20)]


def test_the_same_draft_passes() -> None:
    """The difference from itself is exactly 0, so every margin passes."""
    found = compare(_counts(), _counts(), 0.0001, 0.95)

    assert (True, 0.0, 0.0) == (found.passed, found.difference.low, found.difference.high)
    assert found.draft == found.baseline == pytest.approx(0.7)


@pytest.mark.parametrize(("loss", "passed"), [(0.0, True), (0.9, True), (1.1, False), (-5.0, True), (20.0, False)])
def test_the_margin_decides(loss: float, passed: bool) -> None:
    """A draft that is worse by the same amount on every prompt passes below the margin of a point and fails above it."""
    found = compare(_counts(loss), _counts(), 0.01, 0.95)

    assert passed == found.passed
    assert -loss / 100 == pytest.approx(found.difference.value)


def test_a_loss_of_exactly_the_margin_is_refused() -> None:
    """The lower bound must exceed -margin."""
    draft = [counted(f"p{n}", 50.0, tokens=64) for n in range(3)]
    base = [counted(f"p{n}", 52.0, tokens=64) for n in range(3)]

    assert -0.03125 == compare(draft, base, 0.03125, 0.95).difference.low
    assert not compare(draft, base, 0.03125, 0.95).passed
    assert compare(draft, base, 0.0313, 0.95).passed


def test_not_proved_is_not_passed() -> None:
    """With the same mean but a wide interval, a loss of a point is not excluded: refused."""
    found = compare(_counts(spread=10), _counts(), 0.01, 0.95)

    assert (False, pytest.approx(0)) == (found.passed, found.difference.value)
    assert not compare(_counts()[:1], _counts()[:1], 0.5, 0.95).passed


def test_a_baseline_survives_its_file() -> None:
    """Conditions and counts are read back as they were written."""
    raw = json.loads(json.dumps(baseline_json(_counts(), {"gamma": 5}), allow_nan=False))

    assert ({"gamma": 5}, _counts()) == read_baseline(raw, "b.json")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"schema": 1, "conditions": {}, "prompts": []},
        {"schema": 2, "prompts": []},
        {"schema": 2, "conditions": None, "prompts": []},
        {"schema": 2, "conditions": {}, "prompts": [{"id": "a"}]},
        {"schema": 2, "conditions": {}, "prompts": ["a"]},
    ],
)
def test_what_is_not_a_baseline_is_a_usage_error(raw: object) -> None:
    """Another schema or a missing part: the error names the file and how to write a new one."""
    with pytest.raises(UsageError, match=r"b\.json: .*--update-baseline"):
        read_baseline(raw, "b.json")


def test_other_prompts_cannot_be_compared() -> None:
    """Different prompts, and empty lists, are errors."""
    with pytest.raises(UnderstudyError, match="same prompts"):
        compare(_counts()[1:], _counts(), 0.01, 0.95)
    with pytest.raises(ValueError, match="figure"):
        compare([], [], 0.01, 0.95)

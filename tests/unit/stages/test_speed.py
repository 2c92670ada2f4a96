"""The stage that measures step times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stages.speed
from pipeline.acceptance.decoding_speed import Measured, SpeedCheck
from pipeline.acceptance.step_times import StepTimes
from pipeline.config.loading import load_config
from pipeline.errors import UnderstudyError
from pipeline.running.context import StageContext
from pipeline.running.speed_inputs import BROKEN, COMPUTABLE
from pipeline.speculation.settings import GREEDY, Sampling
from tests.contexts import settings_of, stage_context

CONFIGS = Path(__file__).parents[3] / "configs"


def _without_memory(*_: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _context(place: Path, examination: str) -> StageContext[Any]:
    config, digests = load_config(CONFIGS / "smoke.yaml"), {"examination": examination}
    return stage_context(config, "speed/candidate", place, place / "out", digests=digests)


def test_a_measurement_without_memory_says_how_to_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting is named."""
    monkeypatch.setattr(stages.speed, "_measure", _without_memory)
    with pytest.raises(UnderstudyError, match=r"^step times: out of memory; set evaluate\.speed\.turns to 0"):
        stages.speed.run(_context(tmp_path, COMPUTABLE))


def test_nothing_is_measured_with_a_draft_that_cannot_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on, and the gate refuses it; nor do drafts of its shape get an artifact without times."""
    monkeypatch.setattr(stages.speed, "_measure", _without_memory)
    assert {} == stages.speed.run(_context(tmp_path, BROKEN)).figures
    assert [] == list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("drafting", "expected"), [("greedy", GREEDY), ("probabilistic", Sampling(0.7))])
def test_the_draft_is_sampled_as_the_engine_does(drafting: str, expected: Sampling) -> None:
    """Greedily, or at the deployment's settings."""
    changed = ("sampling.temperature=0.7", f"evaluate.draft_sampling={drafting}")
    assert expected == settings_of(load_config(CONFIGS / "smoke.yaml", changed), "speed/candidate").drafting


@pytest.mark.parametrize(("checks", "kept"), [([None], 0), ([True], 0), ([False, True], 1), ([False, False], 1)])
def test_a_contradiction_is_measured_again_before_it_is_stored(checks: list[bool | None], kept: int) -> None:
    """Drafts of equal shape share step times, so one disturbed measurement would be theirs for good."""
    given = [
        StepTimes(device="cpu", prompts=8, tokens=512, plain=[1.0], rounds={1: [1.0]}, check=_check(one))
        for one in checks
    ]
    left = iter(given)
    assert given[kept] is stages.speed.agreeing(lambda: next(left), 0.95)
    assert [] == list(left)


def test_turns_that_differ_too_much_are_measured_again() -> None:
    """They give no speedup either."""
    quiet, busy = (
        StepTimes(device="cpu", prompts=8, tokens=512, plain=[1.0] * 6, rounds={1: [one, *[1.0] * 5]})
        for one in (1.0, 2.0)
    )
    left = iter([busy, quiet])
    assert quiet is stages.speed.agreeing(lambda: next(left), 0.95)

    few = replace(busy, tokens=16)  # no speedup in any case, and twice the seconds that were asked for
    left = iter([few])
    assert few is stages.speed.agreeing(lambda: next(left), 0.95)


def _check(agrees: bool | None) -> SpeedCheck | None:
    same = Measured(1.0, 0.9, 1.1)
    return (
        agrees
        if agrees is None
        else SpeedCheck(gamma=1, prompts=8, tokens=512, computed=same, decoded=same, agrees=agrees)
    )

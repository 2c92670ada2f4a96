"""The speeds of a decision, from step times and examinations."""

from dataclasses import replace

import pytest

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.profile_file import NotExamined, ProfileWithCounts
from pipeline.acceptance.step_times import StepTimes
from pipeline.judgement.measured_speed import measured_speed
from pipeline.judgement.schema import BASELINE, CANDIDATE, Side
from tests.fakes import counted
from tests.profiles import DRAFT, make_profile

TIMES = StepTimes(
    device="cpu",
    prompts=8,
    tokens=512,
    plain=[1.0, 1.1, 1.0, 1.2, 1.0, 1.05],
    rounds={1: [1.1] * 6, 3: [1.3, 1.4, 1.35, 1.3, 1.3, 1.4]},
    draft="base",
)


def _examined(digest: str, accepted: float = 60.0, prompts: int = 40) -> ProfileWithCounts:
    """Of prompts with 100 tokens."""
    counts = [counted(f"p{number:02}", accepted + number % 5, domain="code") for number in range(prompts)]
    profile = make_profile(counts, draft=replace(DRAFT, digest=digest))
    return ProfileWithCounts(profile, CountTable.of(counts))


def test_two_equal_drafts_have_one_speedup() -> None:
    """The candidate has the weights of what it is compared with under another digest: one shape, one examination, one speedup."""
    times: dict[Side, StepTimes] = {CANDIDATE: TIMES, BASELINE: TIMES}
    found = measured_speed(times, {CANDIDATE: _examined("again"), BASELINE: _examined("base")}, (), 0.95)
    assert found is not None
    assert found.baseline is not None
    assert found.candidate.speedup is not None
    assert replace(found.candidate, timed=None) == replace(found.baseline, timed=None)
    assert ("baseline", "itself") == (found.candidate.timed, found.baseline.timed)
    assert (40, 4000) == (found.examined_prompts, found.examined_tokens)


@pytest.mark.parametrize(("timed", "expected"), [("again", "itself"), ("other", "another"), (None, "another")])
def test_whose_step_times_they_are(timed: str | None, expected: str) -> None:
    """An earlier run may have measured them with a draft that this one does not know."""
    found = measured_speed({CANDIDATE: replace(TIMES, draft=timed)}, {CANDIDATE: _examined("again")}, (), 0.95)
    assert found is not None
    assert expected == found.candidate.timed


def test_prompts_that_a_draft_was_trained_on_do_not_count() -> None:
    """They would flatter it; with too few others nothing is measurable."""
    seen = [f"p{number:02}" for number in range(33)]
    found = measured_speed({CANDIDATE: TIMES}, {CANDIDATE: _examined("again")}, seen, 0.95)
    assert found is not None
    assert "7 prompts with 700 tokens are too few" in str(found.candidate.not_measurable)
    assert (7, 700) == (found.examined_prompts, found.examined_tokens)


def test_without_step_times_or_figures_of_the_candidate_there_is_nothing() -> None:
    """A draft that cannot be computed was not timed."""
    broken = NotExamined(_examined("again").profile, "NaN")
    assert measured_speed({}, {CANDIDATE: _examined("again")}, (), 0.95) is None
    assert measured_speed({CANDIDATE: TIMES}, {CANDIDATE: broken, BASELINE: _examined("base")}, (), 0.95) is None

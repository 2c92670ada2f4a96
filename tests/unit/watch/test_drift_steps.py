"""Single steps of the drift test, by hand: borders, bounds and weights."""

import math
from dataclasses import replace
from typing import Any

import pytest

from pipeline.config.watch import WatchConfig
from pipeline.watch.drift import Drift, started
from pipeline.watch.e_detector import Component, Detector
from pipeline.watch.reference import BLOCK, SLOTS, Reference, Sums
from pipeline.watch.share import FIRST, WatchedShare

LOOK = 300.0
SETTINGS = WatchConfig(burst_minutes=1.0)
LEVEL, SPREAD, MARGIN = 0.01, 0.004, SETTINGS.margin
SIZES = {"looks": (0.02, 0.05, 0.10, 0.20), "blocks": (0.01, 0.03, 0.08, 0.18)}
NOTHING = WatchedShare(name=FIRST, trials=0.0, successes=0.0, predicted=0.7)


def _known(**changes: Any) -> Drift:
    """A reference of 100 drafts a look; in the second block of the day acceptance is a point better."""
    reference = Reference(
        level=(0.0, LEVEL, *(0.0,) * (SLOTS - 2)),
        band=0.01,
        design_effect=1.5,
        typical=100.0,
        block=SPREAD,
        days=7.0,
        trials=56 * 3600.0,
    )
    return replace(started(0.0), reference=replace(reference, **changes))


def _at(evidence: float, sizes: int = 4) -> Detector:
    return Detector((Component(evidence, 1.0, 0.0),) * sizes)


def _after_block(drift: Drift, trials: float, deviation: float) -> Drift:
    """A look without drafts closes the second block of the day, which had these."""
    block = Sums(number=1, n=trials, e=trials * deviation)
    return replace(drift, block=block).with_look(NOTHING, 2 * BLOCK + LOOK, LOOK, SETTINGS)


@pytest.mark.parametrize(("chart", "unit"), [("looks", LOOK), ("blocks", BLOCK)])
def test_an_alarm_needs_the_evidence_of_a_year_in_each_of_eight_charts(chart: str, unit: float) -> None:
    """Each chart of the two counts may raise one in eight years, so that all have one in a year; by its own unit of time."""
    bound, found = math.log(8 * 365 * 86_400 / unit), []
    for evidence in (bound - 0.01, bound + 0.01):
        charts = getattr(started(0.0), chart) | {"high": _at(evidence)}
        found.append(replace(_known(), **{chart: charts}).with_look(NOTHING, LOOK, LOOK, SETTINGS).verdict)
    assert ["steady", "high"] == found


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("place", range(4))
def test_each_size_of_a_change_has_its_chart(side: int, place: int) -> None:
    """Of looks and of blocks: the size that is there gathers the most evidence."""
    name = "low" if side < 0 else "high"
    share = 0.7 + side * (MARGIN + 0.01 + SIZES["looks"][place])
    look = WatchedShare(name=FIRST, trials=100.0, successes=100 * share, predicted=0.7)
    spread = 0.06
    off = LEVEL + side * (MARGIN + spread / 2 + SIZES["blocks"][place])
    found = (
        _known().with_look(look, LOOK, LOOK, SETTINGS).looks[name],
        _after_block(_known(block=spread), 3600.0, off).blocks[name],
    )
    for detector in found:
        evidence = [one.log_evidence for one in detector.components]
        assert place == evidence.index(max(evidence))


def test_a_block_is_evidence_beyond_its_level_the_margin_and_half_a_spread() -> None:
    """shift / variance (x - shift / 2) for the smallest size, a point; the level was estimated from 7 blocks."""
    border = LEVEL - MARGIN - SPREAD / 2
    found = [
        _after_block(_known(), 3600.0, border - below).blocks["low"].components[0].log_evidence
        for below in (0.005, 0.006)
    ]
    assert [0.0, 0.01 * 0.001 / (SPREAD**2 * 8 / 7)] == pytest.approx(found)


def test_a_block_alone_is_bounded_evidence() -> None:
    """Of an alarm, at each size; a block without drafts is none."""
    found = [_after_block(_known(), *one).blocks for one in ((3600.0, -0.05), (0.0, 0.0))]
    bound = math.log(8 * 365 * 8)
    assert "low" == _after_block(_known(), 3600.0, -0.5).verdict
    assert bound == pytest.approx(max(one.log_evidence for one in found[0]["low"].components))
    assert [0.0] * 4 == [one.log_evidence for one in found[1]["low"].components]


def test_few_drafts_in_a_block_are_no_drift() -> None:
    """An engine that was down for most of three hours: 8 accepted of 20 drafts are chance, 1,440 of 3,600 are not."""
    found = [_after_block(_known(), trials, -0.3).verdict for trials in (20.0, 3600.0)]
    assert ["steady", "low"] == found


def test_a_look_belongs_to_the_block_of_its_middle() -> None:
    """Also the first one of a block, whose drafts are in it."""
    share = WatchedShare(name=FIRST, trials=100.0, successes=70.0, predicted=0.7)
    found = [_known().with_look(share, BLOCK + past, LOOK, SETTINGS).block for past in (100.0, 200.0)]
    assert [(0, 100.0), (1, 100.0)] == [(one.number, one.n) for one in found if one is not None]


def test_a_pause_is_no_evidence() -> None:
    """A day without a look counts for an hour, for a drift and for its end."""
    day = _known().with_look(NOTHING, 86_400.0, 86_400.0, SETTINGS)
    assert math.log(12) == pytest.approx(day.looks["low"].log_evidence)
    low = replace(started(0.0), verdict="low")
    assert "low" == low.with_look(NOTHING, 86_400.0, 86_400.0, SETTINGS).verdict


def test_a_drift_has_ended_at_a_hundred_to_one() -> None:
    """The weight of a look is one of them."""
    found = [
        replace(started(0.0), verdict="low", end=_at(math.log(odds), 1)).with_look(NOTHING, LOOK, LOOK, SETTINGS)
        for odds in (98.9, 99.1)
    ]
    assert ["low", "steady"] == [one.verdict for one in found]


def test_one_look_is_no_end() -> None:
    """However many drafts it has; and the next drift has an end of its own."""
    share = WatchedShare(name=FIRST, trials=1e5, successes=7e4, predicted=0.7)
    settings = SETTINGS.model_copy(update={"margin": 0.1})
    once = replace(started(0.0), verdict="low").with_look(share, LOOK, LOOK, settings)
    again = once.with_look(share, 2 * LOOK, LOOK, settings)
    assert ["low", "steady"] == [one.verdict for one in (once, again)]
    assert again.end == started(0.0).end


@pytest.mark.parametrize("margin", [0.0, 0.02])
def test_one_block_is_no_end(margin: float) -> None:
    """Two are, or some more where a drift is as small as the usual spread."""
    settings = SETTINGS.model_copy(update={"margin": margin})
    drift, verdicts = replace(_known(), verdict="low"), []
    for number in range(1, 40):
        block = Sums(number=number, n=3600.0, e=LEVEL * 3600.0 if number % SLOTS == 1 else 0.0)
        drift = replace(drift, block=block).with_look(NOTHING, (number + 1) * BLOCK + LOOK, LOOK, settings)
        verdicts.append(drift.verdict)
        if drift.verdict == "steady":
            break
    assert ("low", "steady") == (verdicts[0], verdicts[-1])
    assert len(verdicts) < (5 if margin else 30)


def test_nothing_is_learned_while_there_is_a_drift() -> None:
    """Else it would become the usual."""
    share = WatchedShare(name=FIRST, trials=100.0, successes=20.0, predicted=0.7)
    found = replace(started(0.0), verdict="low").with_look(share, LOOK, LOOK, SETTINGS)
    assert () == found.hours


@pytest.mark.parametrize(("burst_minutes", "drafts", "alarm"), [(60.0, 67.0, 12), (1.0, 50.0, 3)])
def test_a_look_that_is_far_outside_says_when_there_is_an_alarm(
    burst_minutes: float, drafts: float, alarm: int
) -> None:
    """First tokens at 0.07 in place of 0.531: the time that each look says is right within a look. What it waits for is the end
    of a burst, or more drafts."""
    settings, drift, said = WatchConfig(burst_minutes=burst_minutes), started(0.0), []
    effect = 1.5 if burst_minutes == 60 else 2.0
    look = WatchedShare(name=FIRST, trials=drafts, successes=0.07 * drafts, predicted=0.531, design_effect=effect)
    while drift.verdict == "steady":
        drift = drift.with_look(look, (len(said) + 1) * LOOK, LOOK, settings)
        said.append(drift.outside)
    assert (alarm, None) == (len(said), said.pop())
    found = [(one.side, one.as_burst, number + one.seconds / LOOK) for number, one in enumerate(said, 1) if one]
    assert [("low", burst_minutes == 60)] * (alarm - 1) == [one[:2] for one in found]
    assert all(abs(told - alarm) <= 1 for _, _, told in found)


@pytest.mark.parametrize("share", [0.7, 0.61, 0.79])
def test_a_look_within_what_is_normal_is_not_outside(share: float) -> None:
    """Predicted 0.7: within the band and the margin, or a chance of a hundredth beyond."""
    look = WatchedShare(name=FIRST, trials=100.0, successes=100 * share, predicted=0.7)
    assert started(0.0).with_look(look, LOOK, LOOK, WatchConfig()).outside is None

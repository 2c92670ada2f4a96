"""The test for drift, on streams whose truth is known. All seeded; the rate of false alarms is measured by a benchmark."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.config.watch import WatchConfig
from pipeline.watch.drift import Drift, evidence, started
from pipeline.watch.reference import BLOCK, SLOTS, Reference, assumed, learned, with_look
from pipeline.watch.share import FIRST, WatchedShare

SETTINGS = WatchConfig()
LOOK = 300.0
DAY = 288
PREDICTED = 0.7


def _share(rng: np.random.Generator, rate: float, drafts: int = 2000, predicted: float = PREDICTED) -> WatchedShare:
    return WatchedShare(
        name=FIRST, trials=float(drafts), successes=float(rng.binomial(drafts, rate)), predicted=predicted
    )


def _run(
    rate: Callable[[int], float],
    looks: int,
    drift: Drift | None = None,
    settings: WatchConfig = SETTINGS,
    seed: int = 0,
    predicted: float = PREDICTED,
) -> tuple[Drift, list[tuple[int, str]]]:
    """The drift after so many looks, and each change of the verdict. `rate`: by look."""
    rng, drift, told = np.random.default_rng(seed), drift or started(0.0), []
    for look in range(looks):
        before = drift.verdict
        drift = drift.with_look(_share(rng, rate(look), predicted=predicted), (look + 1) * LOOK, LOOK, settings)
        if drift.verdict != before:
            told.append((look, drift.verdict))
    return drift, told


def _known(band: float = 0.01, block: float = 0.005) -> Drift:
    reference = Reference(
        level=(0.0,) * SLOTS, band=band, design_effect=1.5, typical=2000.0, block=block, days=7.0, trials=1e6
    )
    return replace(started(0.0), reference=reference)


@pytest.fixture(scope="module")
def usual() -> tuple[Drift, list[tuple[int, str]]]:
    """After ten days at 3 points below the prediction."""
    return _run(lambda look: PREDICTED - 0.03, 10 * DAY)


def test_as_predicted_is_no_drift(usual: tuple[Drift, list[tuple[int, str]]]) -> None:
    drift, told = usual
    assert ([], True) == (told, drift.reference is not None)


@pytest.mark.parametrize(("fall", "verdict"), [(0.3, "low"), (-0.25, "high")])
def test_both_sides_are_found_before_there_is_a_reference(fall: float, verdict: str) -> None:
    """Within the band that is stated; the burst of the config has to be over."""
    _, told = _run(lambda look: PREDICTED - (fall if look >= 100 else 0), 160)
    assert [verdict] == [found for _, found in told]
    assert 111 <= told[0][0] < 125


def test_a_deviation_within_band_and_margin_is_none() -> None:
    _, told = _run(lambda look: PREDICTED - 0.065, 6 * DAY)
    assert [] == told


def test_a_short_burst_is_none() -> None:
    """40 minutes of other traffic, ten times a day."""
    _, told = _run(lambda look: PREDICTED - (0.3 if look % 29 < 8 else 0), 5 * DAY)
    assert [] == told
    _, told = _run(
        lambda look: PREDICTED - (0.3 if look % 29 < 8 else 0),
        DAY,
        settings=SETTINGS.model_copy(update={"burst_minutes": 10.0}),
    )
    assert told


def test_a_small_fall_is_found_by_blocks() -> None:
    """4 points below, with hours that usually deviate by up to 5: looks cannot tell it, blocks can. The time is right within a
    block."""
    drift, told = _run(lambda look: PREDICTED - (0.04 if look >= 2 * DAY else 0), 6 * DAY, _known(band=0.05))
    assert ["low"] == [found for _, found in told]
    assert 2 * DAY < told[0][0] < 4 * DAY
    assert abs(drift.since - 2 * DAY * LOOK) <= BLOCK


def test_a_drift_ends_by_its_own_test() -> None:
    drift, told = _run(lambda look: PREDICTED - (0.1 if 100 <= look < 400 else 0), 3 * DAY, _known())
    assert ["low", "steady"] == [found for _, found in told]
    assert 400 < told[1][0] < 400 + DAY
    assert abs(drift.since - 400 * LOOK) <= BLOCK


def test_a_drift_ends_before_there_is_a_reference() -> None:
    _, told = _run(lambda look: PREDICTED - (0.3 if 100 <= look < 200 else 0), 300)
    assert ["low", "steady"] == [found for _, found in told]


def test_hours_of_a_drift_teach_nothing() -> None:
    """A drift of a few hours in the first week: the reference is of the other hours."""
    drift, told = _run(lambda look: PREDICTED - (0.3 if 2 * DAY <= look < 2 * DAY + 40 else 0), 9 * DAY)
    assert ["low", "steady"] == [found for _, found in told]
    assert drift.reference is not None
    assert drift.reference.band < 0.05


@pytest.mark.parametrize(("rate", "verdict"), [(PREDICTED, "steady"), (PREDICTED - 0.2, "low")])
def test_a_look_of_a_day_is_tested_against_the_mean_level(rate: float, verdict: str) -> None:
    """The watch did not run for a day, in which the level goes from +10 points to -10 and back: they are those of no block."""
    known = _known()
    assert known.reference is not None
    levels = (0.1, 0.1, 0.05, -0.05, -0.1, -0.1, -0.05, 0.05)
    drift = replace(known, reference=replace(known.reference, level=levels))
    share = _share(np.random.default_rng(0), rate, drafts=DAY * 2000)
    for end in range(SLOTS):
        after = drift.with_look(share, (SLOTS + end + 0.5) * BLOCK, 86_400.0, SETTINGS)
        after = after.with_look(replace(share, trials=0.0, successes=0.0), (SLOTS + end + 1.5) * BLOCK, LOOK, SETTINGS)
        assert verdict == after.verdict


def test_a_look_of_a_day_teaches_nothing() -> None:
    share = _share(np.random.default_rng(0), PREDICTED, drafts=DAY * 2000)
    assert () == started(0.0).with_look(share, 86_400.0, 86_400.0, SETTINGS).hours


def test_a_drift_may_end_with_long_looks() -> None:
    """As where the watch is called once a day."""
    drift, _ = _run(lambda look: PREDICTED - 0.2, 50, _known())
    for day in range(1, 9):
        share = _share(np.random.default_rng(day), PREDICTED, drafts=DAY * 2000)
        drift = drift.with_look(share, day * 86_400.0, 86_400.0, SETTINGS)
    assert "steady" == drift.verdict


@pytest.mark.parametrize("predicted", [0.985, 0.02])
def test_time_alone_is_no_evidence_near_0_and_1(predicted: float) -> None:
    """Where there is no room for a drift, none is tested: here the time between false alarms is 4 days."""
    settings = SETTINGS.model_copy(update={"years_between_false_alarms": 0.0027})
    _, told = _run(lambda look: predicted, 6 * DAY, settings=settings, predicted=predicted)
    assert [] == told


def test_another_champion_keeps_the_reference() -> None:
    drift, _ = _run(lambda look: PREDICTED - 0.2, 50, _known())
    after = drift.renewed(1.0)
    assert ("low", "steady", drift.reference) == (drift.verdict, after.verdict, after.reference)
    assert 0 == max(evidence(after, SETTINGS).values())


def test_the_level_carries_over_to_another_prediction(usual: tuple[Drift, list[tuple[int, str]]]) -> None:
    """3 points below the prediction is this deployment's usual; a better draft that is 3 points below its own is no drift."""
    drift, _ = usual
    assert drift.reference is not None
    assert drift.reference.mean_level == pytest.approx(-0.03, abs=0.002)
    _, told = _run(lambda look: 0.8 - 0.03, 4 * DAY, drift.renewed(0.0), predicted=0.8)
    assert [] == told
    _, told = _run(lambda look: 0.8 - 0.10, 4 * DAY, drift.renewed(0.0), predicted=0.8)
    assert ["low"] == [found for _, found in told]


def test_without_a_prediction_the_first_days_are_only_learned() -> None:
    """Then the counters are compared with themselves."""
    _, told = _run(lambda look: 0.7 if look < 100 else 0.2, 2 * DAY, predicted=0.0)
    assert [] == told
    drift, told = _run(lambda look: 0.7 if look < 8 * DAY else 0.5, 9 * DAY, predicted=0.0)
    assert ["low"] == [found for _, found in told]
    assert drift.reference is not None
    assert drift.reference.mean_level == pytest.approx(0.7, abs=0.002)


def test_evidence_reaches_one_at_an_alarm() -> None:
    found = [max(evidence(_run(lambda look: PREDICTED - 0.3, looks)[0], SETTINGS).values()) for looks in (3, 8, 11)]
    assert 0 < found[0] < found[1] < found[2] < 1


def test_a_reference_is_level_and_spread() -> None:
    """Planted: a level of +4 points in one block of the day, hours that deviate by 3 points in turn, a design effect of 4."""
    rng, hours = np.random.default_rng(3), ()
    for look in range(8 * DAY):
        hour, slot = look // 12, look // 36 % SLOTS
        rate = PREDICTED + (0.04 if slot == 2 else 0) + (0.03 if hour % 2 else -0.03)
        successes = 4.0 * rng.binomial(500, rate)
        share = WatchedShare(name=FIRST, trials=2000.0, successes=successes, predicted=PREDICTED)
        hours = with_look(hours, share, (look + 1) * LOOK, LOOK)
    found = learned(hours, SETTINGS, 1)
    assert found is not None
    assert found.level[2] == pytest.approx(0.04 - 0.01, abs=0.005)  # two of its three hours are on one side
    assert found.level[3] == pytest.approx(0.01, abs=0.005)
    assert 0.03 < found.band < 0.07
    assert found.design_effect == pytest.approx(4, rel=0.1)


def test_a_reference_needs_days_and_drafts() -> None:
    rng = np.random.default_rng(4)
    for days, drafts in ((6, 2000), (8, 5)):
        hours = ()
        for look in range(days * DAY):
            hours = with_look(hours, _share(rng, PREDICTED, drafts), (look + 1) * LOOK, LOOK)
        assert learned(hours, SETTINGS, 1) is None


def test_much_traffic_in_a_look_is_no_more_evidence_than_its_hour() -> None:
    """What is common to a look, such as its mix of domains, does not average out within it."""
    reference = assumed(SETTINGS, _share(np.random.default_rng(0), PREDICTED))
    assert reference.effect_of(100) == reference.design_effect
    assert reference.effect_of(1e6) > 100 * reference.design_effect


def test_the_design_effect_is_the_examined_one_until_counters_say_it() -> None:
    """The stated one first; of draft tokens it is that of a draft for each."""
    share = WatchedShare(name=FIRST, trials=10.0, successes=7.0, predicted=0.7)
    stated = SETTINGS.model_copy(update={"design_effect": 4.0})
    examined, tokens = replace(share, design_effect=2.0), replace(share, design_effect=2.0, dependence=5)
    assert [6, 2, 10, 4] == [
        assumed(settings, one).design_effect
        for settings, one in ((SETTINGS, share), (SETTINGS, examined), (SETTINGS, tokens), (stated, examined))
    ]

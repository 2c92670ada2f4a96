"""Several watched counts: each with its own test, and one drift at a time."""

from collections.abc import Callable
from dataclasses import replace

from pipeline.config.watch import WatchConfig
from pipeline.watch.drift import evidence, started
from pipeline.watch.reference import SLOTS, Reference
from pipeline.watch.share import ALL, FIRST, WatchedShare
from pipeline.watch.watched_counts import Watched, WatchedCounts

LOOK, DAY = 300.0, 288
SETTINGS = WatchConfig(burst_minutes=5.0)
REFERENCE = Reference(
    level=(0.0,) * SLOTS, band=0.01, design_effect=1.5, typical=2000.0, block=0.005, days=7.0, trials=1e6
)


def _known(*names: str) -> WatchedCounts:
    drift = replace(started(0.0), reference=REFERENCE)
    return WatchedCounts(began=0.0, by_name={name: Watched(drift=drift) for name in names})


def _share(name: str, rate: float, trials: float = 2000.0) -> WatchedShare:
    return WatchedShare(name=name, trials=trials, successes=trials * rate, predicted=0.7 if name == FIRST else 0.5)


def _run(
    counts: WatchedCounts, shares: Callable[[int], list[WatchedShare]], begin: int, end: int, seconds: float = LOOK
) -> tuple[WatchedCounts, list[tuple[int, str | None, str]]]:
    """The counts after these looks, and each change: when, which count drifts, and how."""
    told = []
    for look in range(begin, end):
        before = counts.verdict
        counts = counts.with_look(shares(look), (look + 1) * seconds, seconds, SETTINGS)
        if counts.verdict != before:
            told.append((look, counts.drifting, counts.verdict))
    return counts, told


def test_a_fall_at_later_positions_is_found_and_ends() -> None:
    """First tokens are accepted as before. The drift began when it did, and no second one is told of."""
    counts, told = _run(
        _known(FIRST, ALL),
        lambda look: [_share(FIRST, 0.7), _share(ALL, 0.3 if 100 <= look < 200 else 0.5)],
        0,
        200 + DAY,
    )
    assert [(ALL, "low"), (None, "steady")] == [(name, verdict) for _, name, verdict in told]
    assert 100 <= told[0][0] < 110
    assert 200 < told[1][0]
    assert abs(counts.since - 200 * LOOK) <= 36 * LOOK


def test_one_fall_is_one_drift() -> None:
    """Both counts fall: one of them tells it, and what both saw of it ends with it."""
    counts, told = _run(
        _known(FIRST, ALL),
        lambda look: [
            _share(FIRST, 0.5 if 100 <= look < 150 else 0.7),
            _share(ALL, 0.3 if 100 <= look < 150 else 0.5),
        ],
        0,
        150 + 2 * DAY,
    )
    assert ["low", "steady"] == [verdict for _, _, verdict in told]
    assert {"steady"} == {one.drift.verdict for one in counts.by_name.values()}


def test_hours_of_a_drift_teach_no_count_anything() -> None:
    """Neither the count that tells of it nor the others."""
    fall = (2 * DAY, 2 * DAY + 100)

    def shares(look: int) -> list[WatchedShare]:
        falls = fall[0] <= look < fall[1]
        return [_share(FIRST, 0.2 if falls else 0.7), _share(ALL, 0.3 if falls else 0.5)]

    counts, told = _run(WatchedCounts(began=0.0), shares, 0, 9 * DAY)
    assert 2 == len(told)
    for name in (FIRST, ALL):
        reference = counts.by_name[name].drift.reference
        assert reference is not None
        assert reference.band < 0.01, name


def test_what_was_learned_of_a_count_is_kept_for_a_month() -> None:
    """Looks with and without it may alternate, and an engine may draft another length for days. Time without traffic is none."""
    known, both, hour = _known(FIRST), [_share(FIRST, 0.7), _share(ALL, 0.5)], 3600.0
    counts, told = _run(known, lambda look: both if look % 200 == 0 else [both[1]], 0, 3 * DAY)
    assert ([], REFERENCE) == (told, counts.by_name[FIRST].drift.reference)
    counts = counts.with_look([both[1]], 90 * 86_400.0, 80 * 86_400.0, SETTINGS)  # the watch did not run
    counts, _ = _run(counts, lambda look: [], 0, 40 * 24, hour)
    counts, _ = _run(counts, lambda look: [both[1]], 0, 29 * 24, hour)
    assert REFERENCE == counts.by_name[FIRST].drift.reference
    counts, _ = _run(counts, lambda look: [both[1]], 0, 24, hour)
    assert {ALL} == set(counts.by_name)


def test_a_count_that_drifts_and_is_gone_drifts_for_a_day() -> None:
    """As after a change of the engine. What was learned of it stays."""
    low, _ = _run(_known(FIRST), lambda look: [_share(FIRST, 0.4)], 0, 50)
    counts, told = _run(low, lambda look: [_share(ALL, 0.5)], 50, 50 + 2 * DAY)
    assert ("low", [(50 + DAY - 1, None, "steady")]) == (low.verdict, told)
    assert REFERENCE == counts.by_name[FIRST].drift.reference


def test_a_fall_is_found_while_the_count_that_drifts_is_missing() -> None:
    """Later positions fall; then the engine drafts another length, and first tokens fall too: no end is told in between."""
    low, _ = _run(_known(FIRST, ALL), lambda look: [_share(FIRST, 0.7), _share(ALL, 0.3)], 0, 50)
    counts, told = _run(low, lambda look: [_share(FIRST, 0.4)], 50, 50 + 2 * DAY)
    assert (ALL, [], FIRST) == (low.drifting, told, counts.drifting)
    assert 50 * LOOK - 1 <= counts.since < 70 * LOOK


def test_another_champion_keeps_all_references() -> None:
    low, _ = _run(_known(FIRST, ALL), lambda look: [_share(FIRST, 0.4), _share(ALL, 0.5)], 0, 50)
    after = low.renewed(7.0)
    assert ("low", "steady", 7.0) == (low.verdict, after.verdict, after.since)
    assert [REFERENCE] * 2 == [one.drift.reference for one in after.by_name.values()]


def test_nothing_is_known_before_the_first_look() -> None:
    counts = WatchedCounts(began=5.0)
    assert (None, "steady", 5.0) == (counts.drifting, counts.verdict, counts.since)


def test_what_the_others_saw_of_a_drift_is_forgotten_when_it_is_told() -> None:
    """Both fall by less at once, so both have evidence and an open block when one of them tells it."""
    counts, _ = _run(_known(FIRST, ALL), lambda look: [_share(FIRST, 0.62), _share(ALL, 0.42)], 0, 2)
    partly = evidence(counts.by_name[ALL].drift, SETTINGS)
    counts, told = _run(counts, lambda look: [_share(FIRST, 0.4), _share(ALL, 0.42)], 2, 60)
    _, name, verdict = told[0]
    other = counts.by_name[ALL].drift

    assert (FIRST, "low") == (name, verdict)
    assert max(partly.values()) > 0
    assert {0.0} == set(evidence(other, SETTINGS).values())
    assert (None, counts.by_name[FIRST].drift.since) == (other.block, other.since)


def test_a_count_that_appears_is_watched_from_then_on() -> None:
    counts, _ = _run(WatchedCounts(began=0.0), lambda look: [_share(FIRST, 0.7)], 0, 10)
    counts, _ = _run(counts, lambda look: [_share(FIRST, 0.7), _share(ALL, 0.5)], 10, 11)
    assert (LOOK, 11 * LOOK) == tuple(counts.by_name[name].drift.since for name in (FIRST, ALL))

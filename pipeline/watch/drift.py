"""The test for drift of one count: is acceptance in production further from its prediction than it may be? Pure.

Null hypothesis, given the past: the deviation of counted from predicted acceptance is at most `watch.margin` beyond its level and
its usual deviations by hour. Two charts a side, one on looks and one on blocks of three hours, which finds smaller changes later.
At most two counts are watched (`share.py`). Each chart has eight times the wanted time between false alarms, so all eight have it
together at the least.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log
from typing import Literal

from pipeline.config.watch import WatchConfig
from pipeline.store.parsing import Amount, Flag, Moment, stored
from pipeline.watch.e_detector import Detector, fresh, log_mean, mean_increments, rate_increments, updated
from pipeline.watch.reference import BLOCK, HOUR, SLOTS, Reference, Sums, assumed, learned, with_look
from pipeline.watch.share import WatchedShare

Verdict = Literal["steady", "low", "high"]
SIDES: dict[Verdict, int] = {"low": -1, "high": 1}

_FALLS = (0.02, 0.05, 0.10, 0.20)  # beyond the null, for looks
_SHIFTS = (0.01, 0.03, 0.08, 0.18)  # for blocks
_LOOK = 300.0  # seconds; the unit of time of the chart of looks
_YEAR = 365 * 86400.0
_CHARTS = 8  # looks and blocks, low and high, of two counts
_BETWEEN = 0.5  # of a block's standard deviation: what the error of the level and its wandering may be
_ENDED = log(100.0)  # evidence that a drift has ended
_SMALLEST = 0.005  # share that a chart tests
_FAR = log(100.0)  # evidence of one look that is worth a line; no alarm follows from it


@stored
class Outside:
    """The last look alone is far from what is just no drift, and the test cannot alarm yet. `seconds`: to the alarm, if the looks
    to come are like it; `as_burst`: because of `watch.burst_minutes`, and not of few draft tokens."""

    side: Verdict
    seconds: Amount
    as_burst: Flag


@stored
class Drift:
    """The state of the test of a count. `hours`: until there is a reference. `since`: Unix seconds at which the verdict became
    true. `outside`: of the last look."""

    reference: Reference | None = None
    hours: tuple[Sums, ...] = ()
    block: Sums | None = None  # that is open
    looks: dict[str, Detector]
    blocks: dict[str, Detector]
    end: Detector
    verdict: Verdict = "steady"
    since: Moment = 0.0
    outside: Outside | None = None

    def renewed(self, time: float) -> "Drift":
        """The state once another champion is served: the reference, which is of deviations from the prediction, stays."""
        return _anew(self, "steady", time)

    def with_look(self, share: WatchedShare, time: float, seconds: float, settings: WatchConfig) -> "Drift":
        """The state with the counts of one more look, which ended at `time` and took `seconds`.

        A look of more than a block, such as after the watch did not run, is tested against the mean level of its time. It is no
        evidence about an hour, so nothing is learned from it.
        """
        is_long, drift = seconds > BLOCK, self
        if not is_long and drift.verdict == "steady" and drift.reference is None:
            drift = _learning(drift, share, time, seconds, settings)
        reference = drift.reference or assumed(settings, share)
        if drift.reference is None and share.predicted == 0:
            return drift  # nothing to compare with
        closed, block = (drift.block, None) if is_long else _closed(drift.block, share, time, seconds)
        drift = replace(drift, block=block)
        if drift.verdict != "steady":
            return _toward_end(drift, share, closed, reference, time, seconds, settings)
        return _alarmed(_charted(drift, share, closed, reference, time, seconds, settings), settings)


def started(time: float) -> Drift:
    """The state of a test without evidence."""
    return _anew(Drift(looks={}, blocks={}, end=fresh(1), since=time), "steady", time)


def evidence(drift: Drift, settings: WatchConfig) -> dict[tuple[Verdict, str], float]:
    """The evidence for a drift by side and chart: log M over the log M of an alarm, from 0 to 1."""
    charts = {"looks": (drift.looks, _LOOK), "blocks": (drift.blocks, BLOCK)}
    return {
        (side, name): min(1.0, max(0.0, by_side[side].log_evidence / _bound(settings, unit)))
        for side in SIDES
        for name, (by_side, unit) in charts.items()
    }


def _learning(drift: Drift, share: WatchedShare, time: float, seconds: float, settings: WatchConfig) -> Drift:
    hours = with_look(drift.hours, share, time, seconds)
    reference = None
    if len(hours) > 1 and (not drift.hours or hours[-1].number != drift.hours[-1].number):
        reference = learned(hours[:-1], settings, share.dependence)
    return replace(drift, hours=() if reference else hours, reference=reference)


def _closed(block: Sums | None, share: WatchedShare, time: float, seconds: float) -> tuple[Sums | None, Sums]:
    """The block that this look ends, and the open one."""
    number = int((time - seconds / 2) // BLOCK)
    if block is not None and block.number == number:
        return None, block.plus(share, seconds)
    return block, Sums(number=number).plus(share, seconds)


def _charted(
    drift: Drift,
    share: WatchedShare,
    closed: Sums | None,
    reference: Reference,
    time: float,
    seconds: float,
    settings: WatchConfig,
) -> Drift:
    looks, blocks, outside = dict(drift.looks), dict(drift.blocks), None
    for name, side in SIDES.items():
        cap = _bound(settings, _LOOK) * min(1.0, seconds / (60 * settings.burst_minutes))
        log_increments = _of_look(share, reference, time, seconds, side, settings)
        increments = [min(cap, log_increment) for log_increment in log_increments]
        looks[name] = updated(looks[name], increments, _weight(seconds), time - seconds)
        if log_mean(log_increments) >= _FAR:
            missing = max(0.0, _bound(settings, _LOOK) - looks[name].log_evidence)
            outside = Outside(
                side=name,
                seconds=seconds * ceil(missing / max(increments)),
                as_burst=max(log_increments) > max(increments),
            )
        if closed is not None and reference.block is not None:
            increments = [
                min(_bound(settings, BLOCK), log_increment)
                for log_increment in _of_block(closed, reference, side, settings.margin)
            ]
            blocks[name] = updated(blocks[name], increments, 1.0, closed.number * BLOCK)
    return replace(drift, looks=looks, blocks=blocks, outside=outside)


def _weight(seconds: float) -> float:
    """The weight of a look in the chart of looks. A pause counts for an hour: it is no evidence."""
    return min(seconds, 3600.0) / _LOOK


def _of_look(
    share: WatchedShare, reference: Reference, time: float, seconds: float, side: int, settings: WatchConfig
) -> Sequence[float]:
    null, effect = _null(share, reference, time, seconds, side, settings), reference.effect_of(share.trials)
    others = [_inside(null + side * fall) for fall in _FALLS]
    return rate_increments(share.trials, share.successes, null, others, effect)


def _null(
    share: WatchedShare, reference: Reference, time: float, seconds: float, side: int, settings: WatchConfig
) -> float:
    """The share that is just no drift."""
    usual = share.predicted + reference.level_of(time, seconds)
    return _inside(usual + side * (settings.margin + reference.band))


def _of_block(block: Sums, reference: Reference, side: int, margin: float) -> Sequence[float]:
    if not block.n:
        return [0.0] * len(_SHIFTS)
    return mean_increments(_beyond(block, reference, side, margin), _SHIFTS, _variance(reference, block.n))


def _beyond(block: Sums, reference: Reference, side: int, margin: float) -> float:
    """How far a block lies beyond what is just no drift."""
    return side * (block.e / block.n - reference.level[block.number % SLOTS]) - _border(reference, margin)


def _border(reference: Reference, margin: float) -> float:
    """The deviation of blocks from their level that is just no drift."""
    assert reference.block is not None
    return margin + _BETWEEN * reference.block


def _variance(reference: Reference, trials: float) -> float:
    """The variance of a block of so many trials around its level, which was estimated from a block a day.

    The reference has the sampling error of blocks with the usual traffic. A block with less has a larger one: the share of n
    trials varies by at most 1 / (4 n), times the design effect.
    """
    assert reference.block is not None
    days = max(reference.days, 1.0)
    usual = max(reference.trials / (days * SLOTS), 1.0)
    sparse = reference.design_effect / 4 * max(0.0, 1 - trials / usual) / trials
    return max(reference.block**2 * (1 + 1 / days) + sparse, 1e-8)


def _alarmed(drift: Drift, settings: WatchConfig) -> Drift:
    for name in SIDES:
        for detector, unit in ((drift.looks[name], _LOOK), (drift.blocks[name], BLOCK)):
            if detector.log_evidence >= _bound(settings, unit):
                return _anew(forgetting(drift, detector.since), name, detector.since)
    return drift


def forgetting(drift: Drift, since: float) -> Drift:
    """The state without the hours of a drift, which are no usual ones."""
    return replace(drift, hours=tuple(hour for hour in drift.hours if (hour.number + 1) * HOUR <= since))


def _bound(settings: WatchConfig, unit: float) -> float:
    """log 1 / alpha of a chart whose looks take `unit` seconds."""
    return log(_CHARTS * settings.years_between_false_alarms * _YEAR / unit)


def _toward_end(
    drift: Drift,
    share: WatchedShare,
    closed: Sums | None,
    reference: Reference,
    time: float,
    seconds: float,
    settings: WatchConfig,
) -> Drift:
    """The same test the other way round: the null is that the drift goes on."""
    side, end = SIDES[drift.verdict], drift.end
    if reference.block is None or seconds > BLOCK:
        null = _null(share, reference, time, seconds, side, settings)
        usual = _inside(share.predicted + reference.level_of(time, seconds))
        increments = rate_increments(share.trials, share.successes, null, [usual], reference.effect_of(share.trials))
        end = updated(end, [min(_ENDED / 2, increments[0])], _weight(seconds), time - seconds)
    elif closed is not None and closed.n:
        inside, size = -_beyond(closed, reference, side, settings.margin), _border(reference, settings.margin)
        increments = mean_increments(inside, [size], _variance(reference, closed.n))
        end = updated(end, [min(_ENDED / 2, increments[0])], 1.0, closed.number * BLOCK)
    if end.log_evidence >= _ENDED:
        return _anew(drift, "steady", end.since)
    return replace(drift, end=end)


def _anew(drift: Drift, verdict: Verdict, since: float) -> Drift:
    looks, blocks = fresh(len(_FALLS)), fresh(len(_SHIFTS))
    return replace(
        drift,
        looks=dict.fromkeys(SIDES, looks),
        blocks=dict.fromkeys(SIDES, blocks),
        end=fresh(1),
        verdict=verdict,
        since=since,
        outside=None,
    )


def _inside(share: float) -> float:
    return min(max(share, _SMALLEST), 1 - _SMALLEST)

"""How far counted acceptance is from the predicted one while nothing is wrong: level by time of day, and spread. Pure.

Traffic changes by hour and by day, and a draft accepts some of it better: deviations of hours are neither independent nor a
sampling error. So the spread is taken from whole hours and whole blocks of three hours, as they were, and no model of their
correlation is assumed. Until there are enough of them, a stated band takes its place.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Annotated

from pydantic import Field
from scipy.stats import chi2

from pipeline.config.watch import WatchConfig
from pipeline.store.parsing import Amount, Count, Finite, stored
from pipeline.watch.share import WatchedShare

HOUR = 3600.0
BLOCK = 3 * HOUR
SLOTS = 8  # blocks of a day
_DAY = 24 * HOUR
_MOST_HOURS = 24 * 366  # the longest `reference_days` and a day
_DESIGN_EFFECT = 6.0  # of drafts, where nothing states it; 5.6 was seen on tokens of real prompts
_UNCERTAIN = 0.1  # that the spread of the blocks is larger than its bound


@stored
class Sums:
    """The sums over the looks of an hour. n: trials, e: successes beyond the predicted ones, s: successes; over the looks, the
    sums of n, e, s, n^2, n e and e^2, and of the time."""

    number: Count  # of the hour since 1970, or of the block
    seconds: Amount = 0.0
    n: Amount = 0.0
    e: Finite = 0.0
    s: Amount = 0.0
    nn: Amount = 0.0
    ne: Finite = 0.0
    ee: Amount = 0.0

    def plus(self, share: WatchedShare, seconds: float) -> "Sums":
        n, e = share.trials, share.deviation
        return Sums(
            number=self.number,
            seconds=self.seconds + seconds,
            n=self.n + n,
            e=self.e + e,
            s=self.s + share.successes,
            nn=self.nn + n * n,
            ne=self.ne + n * e,
            ee=self.ee + e * e,
        )

    @property
    def within(self) -> float:
        """Sum over the looks of (e - n d)^2, where d is the hour's deviation."""
        d = self.e / self.n
        return max(0.0, self.ee - 2 * d * self.ne + d * d * self.nn)


@stored
class Reference:
    """Level and spread of the deviations, as shares.

    `level`: by block of the day (UTC). `band`: the largest deviation of an hour that is expected. `design_effect`: variance of
    the successes of a look over that of independent trials, where a look has `typical` trials. `block`: standard deviation of a
    block around its level, an upper bound; None until it is known.
    """

    level: tuple[Finite, ...]
    band: Amount
    design_effect: Annotated[Finite, Field(ge=1)]
    typical: Annotated[Finite, Field(gt=0)] | None
    block: Amount | None = None
    days: Amount = 0.0
    trials: Amount = 0.0

    def level_of(self, time: float, seconds: float) -> float:
        """The level of a look that ended at `time` and took `seconds`; of one of more than a block, the mean over its blocks."""
        if seconds <= BLOCK:
            return self.level[int((time - seconds / 2) // BLOCK) % SLOTS]
        last = int(time // BLOCK)
        first = max(int((time - seconds) // BLOCK), last - SLOTS + 1)
        levels = [self.level[number % SLOTS] for number in range(first, last + 1)]
        return sum(levels) / len(levels)

    @property
    def mean_level(self) -> float:
        return sum(self.level) / SLOTS

    def effect_of(self, trials: float) -> float:
        """The design effect of a look with so many trials. What is common to a look, such as its mix of domains, makes the
        variance grow with the square of the trials."""
        return self.design_effect * (1.0 if self.typical is None else max(1.0, trials / self.typical))


def assumed(settings: WatchConfig, share: WatchedShare) -> Reference:
    """The reference that is taken until there is a learned one: the stated band, half of which is taken for what is common to a
    look, and the design effect that is stated, else the examined one."""
    effect = (settings.design_effect or share.design_effect or _DESIGN_EFFECT) * share.dependence
    typical = effect / (settings.band**2) if settings.band else None  # effect / 4 / (band / 2)^2
    return Reference(level=(0.0,) * SLOTS, band=settings.band, design_effect=effect, typical=typical)


def with_look(hours: tuple[Sums, ...], share: WatchedShare, time: float, seconds: float) -> tuple[Sums, ...]:
    """The hours with one more look that ended at `time`; the last one is open."""
    hour = int((time - seconds / 2) // HOUR)
    before, last = (hours[:-1], hours[-1]) if hours and hours[-1].number == hour else (hours, Sums(number=hour))
    return (*before, last.plus(share, seconds))[-_MOST_HOURS:]


def learned(hours: Sequence[Sums], settings: WatchConfig, dependence: int) -> Reference | None:
    """The reference of closed hours; None where they are too few, or no block of the day was seen twice."""
    seconds, trials = sum(hour.seconds for hour in hours), sum(hour.n for hour in hours)
    enough = seconds >= settings.reference_days * _DAY and trials >= settings.reference_drafts * dependence
    if not enough:
        return None
    blocks = _blocks(hours)
    level = _levels(blocks)
    freedom = len(blocks) - len({slot for slot, _ in blocks})
    if freedom < 1:
        return None
    squares = sum((deviation - level[slot]) ** 2 for slot, deviation in blocks)
    share = min(max(sum(hour.s for hour in hours) / trials, 0.01), 0.99)
    effect, typical = _design_effect(hours, share), sum(hour.nn for hour in hours) / trials
    return Reference(
        level=tuple(level),
        band=_band(hours, level, effect * share * (1 - share)),
        design_effect=effect,
        typical=typical,
        block=sqrt(squares / float(chi2.ppf(_UNCERTAIN, freedom))),
        days=seconds / _DAY,
        trials=trials,
    )


def _blocks(hours: Sequence[Sums]) -> list[tuple[int, float]]:
    """The place in the day and the deviation of each block of three hours."""
    sums: dict[int, tuple[float, float]] = {}
    for hour in hours:
        n, e = sums.get(hour.number // 3, (0.0, 0.0))
        sums[hour.number // 3] = n + hour.n, e + hour.e
    return [(block % SLOTS, e / n) for block, (n, e) in sums.items() if n]


def _levels(blocks: Sequence[tuple[int, float]]) -> list[float]:
    """The mean deviation by block of the day; where one has no traffic, the mean of all."""
    mean = sum(deviation for _, deviation in blocks) / len(blocks)
    by_slot = [[deviation for slot, deviation in blocks if slot == wanted] for wanted in range(SLOTS)]
    return [sum(deviations) / len(deviations) if deviations else mean for deviations in by_slot]


def _design_effect(hours: Sequence[Sums], share: float) -> float:
    """Variance of the looks around their hour over the binomial one; an hour of one look is no evidence."""
    several = [hour for hour in hours if hour.n and hour.nn < hour.n**2]
    binomial = sum(hour.n - hour.nn / hour.n for hour in several) * share * (1 - share)
    return max(1.0, sum(hour.within for hour in several) / binomial) if binomial else 1.0


def _band(hours: Sequence[Sums], level: Sequence[float], variance: float) -> float:
    """The largest deviation of an hour from its level, less the part of a sampling error. Hours with little traffic are left out.

    `variance`: of one trial, design effect included. Of a deviation with the variance t^2 beside a sampling error of v, the part
    t^2 / (t^2 + v) of the square is its own.
    """
    mean = sum(hour.n for hour in hours) / len(hours)
    busy = [(hour.n, hour.e / hour.n - level[hour.number // 3 % SLOTS]) for hour in hours if hour.n > mean / 4]
    square = sum(n * deviation**2 for n, deviation in busy) / sum(n for n, _ in busy)
    error = variance * len(busy) / sum(n for n, _ in busy)
    own = max(0.0, 1 - error / square) if square else 0.0
    return sqrt(own) * max((abs(deviation) for _, deviation in busy))

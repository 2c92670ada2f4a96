"""Which domain moved: acceptance by domain in the last hours, beside the last days. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from pipeline.engines.counts import Counts
from pipeline.store.parsing import KNOWN_FIELDS_ONLY, Amount
from pipeline.watch.share import watched_share

_LONG, _SHORT = 5 * 86_400.0, 2 * 3600.0  # seconds after which a look counts for a third
_MOST = 50  # domains that are remembered


@dataclass(frozen=True)
class Recent:
    """Sums that forget: trials and successes, over days and over hours."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    long: tuple[Amount, Amount] = (0.0, 0.0)
    short: tuple[Amount, Amount] = (0.0, 0.0)


@dataclass(frozen=True)
class Moved:
    """A domain whose acceptance changed. `change`: of its share; `part`: of the trials of the last hours."""

    domain: str
    change: float
    part: float


def remembered(
    domains: Mapping[str, Recent], counts: Mapping[str, Counts], gamma: int | None, seconds: float
) -> dict[str, Recent]:
    """With one more look, the domains with the most traffic."""
    kept = {
        name: Recent(_faded(one.long, seconds, _LONG), _faded(one.short, seconds, _SHORT))
        for name, one in domains.items()
    }
    for name, found in counts.items():
        if (share := watched_share(found, None, gamma)) is not None:
            before, added = kept.get(name, Recent()), (share.trials, share.successes)
            kept[name] = Recent(_plus(before.long, added), _plus(before.short, added))
    most = sorted(kept, key=lambda name: -kept[name].long[0])[:_MOST]
    return {name: kept[name] for name in most}


def moved(domains: Mapping[str, Recent], side: int) -> Moved | None:
    """The domain that contributes most to the change of the last hours in the direction of `side`; None without domains."""
    total = sum(one.short[0] for one in domains.values())
    found = [
        Moved(name, one.short[1] / one.short[0] - one.long[1] / one.long[0], one.short[0] / total)
        for name, one in domains.items()
        if one.short[0] > 0 and one.long[0] > 0
    ]
    most = max(found, key=lambda one: side * one.change * one.part, default=None)
    return most if most is not None and side * most.change > 0 else None


def _faded(sums: tuple[float, float], seconds: float, memory: float) -> tuple[float, float]:
    left = exp(-seconds / memory)
    return sums[0] * left, sums[1] * left


def _plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]

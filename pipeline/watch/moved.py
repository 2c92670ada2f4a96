"""Which domain moved: acceptance by domain in the last hours, beside the last days. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from pipeline.engines.counts import Counts
from pipeline.store.parsing import Amount, stored
from pipeline.watch.share import watched_shares

_LONG, _SHORT = 5 * 86_400.0, 2 * 3600.0  # seconds after which a look counts for a third
_MOST = 50  # domains that are remembered


@stored(kw_only=False)
class Recent:
    """Sums that forget: trials and successes, over days and over hours."""

    long: tuple[Amount, Amount] = (0.0, 0.0)
    short: tuple[Amount, Amount] = (0.0, 0.0)


@dataclass(frozen=True)
class Moved:
    """A domain whose acceptance changed. `change`: of its share; `part`: of the trials of the last hours."""

    domain: str
    change: float
    part: float


def with_look(
    known: Mapping[str, Mapping[str, Recent]], by_domain: Mapping[str, Counts], gamma: int | None, seconds: float
) -> dict[str, dict[str, Recent]]:
    """The sums after one more look, by the name of the count, of the domains with the most traffic."""
    by_count: dict[str, dict[str, Recent]] = {
        count: {
            domain: Recent(_faded(recent.long, seconds, _LONG), _faded(recent.short, seconds, _SHORT))
            for domain, recent in domains.items()
        }
        for count, domains in known.items()
    }
    for domain, counts in by_domain.items():
        for share in watched_shares(counts, None, gamma):
            domains, added = by_count.setdefault(share.name, {}), (share.trials, share.successes)
            before = domains.get(domain, Recent())
            domains[domain] = Recent(_plus(before.long, added), _plus(before.short, added))
    return {count: _most(domains) for count, domains in by_count.items()}


def _most(domains: dict[str, Recent]) -> dict[str, Recent]:
    kept = sorted(domains, key=lambda name: -domains[name].long[0])[:_MOST]
    return {name: domains[name] for name in kept}


def moved(domains: Mapping[str, Recent], side: int) -> Moved | None:
    """The domain that contributes most to the change of the last hours in the direction of `side`; None without domains."""
    total = sum(recent.short[0] for recent in domains.values())
    changes = [
        Moved(name, recent.short[1] / recent.short[0] - recent.long[1] / recent.long[0], recent.short[0] / total)
        for name, recent in domains.items()
        if recent.short[0] > 0 and recent.long[0] > 0
    ]
    most = max(changes, key=lambda change: side * change.change * change.part, default=None)
    return most if most is not None and side * most.change > 0 else None


def _faded(sums: tuple[float, float], seconds: float, memory: float) -> tuple[float, float]:
    left = exp(-seconds / memory)
    return sums[0] * left, sums[1] * left


def _plus(sums: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return sums[0] + other[0], sums[1] + other[1]

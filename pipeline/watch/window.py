"""`watch.rule: window`: acceptance in a window of draft tokens is below a threshold. Pure.

The rule of many deployments, for those who want it: its rate of false alarms depends on the traffic and grows with the time that
it runs (docs/benchmarks/watch.md).
"""

from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.store.parsing import Flag, Moment, stored

_AGAIN = 0.05  # above the threshold at which it is over


@stored(kw_only=False)
class Window:
    """The counts of the last looks, the newest last, that together have enough draft tokens."""

    counts: tuple[Counts, ...] = ()
    low: Flag = False
    since: Moment = 0.0  # Unix seconds

    @property
    def total(self) -> Counts | None:
        return sum(self.counts[1:], self.counts[0]) if self.counts else None


def slid(window: Window, counts: Counts, time: float, settings: WatchConfig) -> Window:
    """With one more look; the oldest are dropped as long as `watch.window` draft tokens remain."""
    kept = (*window.counts, counts)
    while len(kept) > 1 and _tokens(kept[1:]) >= settings.window:
        kept = kept[1:]
    now = Window(kept, window.low, window.since)
    rate = None if now.total is None else now.total.examined_acceptance_rate
    if rate is None or _tokens(kept) < settings.window:
        return now
    low = rate < settings.threshold + (_AGAIN if window.low else 0.0)
    return Window(kept, low, window.since if low == window.low else time)


def _tokens(counts: tuple[Counts, ...]) -> float:
    return sum(one.draft_tokens or 0.0 for one in counts)

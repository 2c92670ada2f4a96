"""Findings by a threshold, which are over only well beyond it: acceptance in a window of draft tokens, and whether speculation
pays at the acceptance and the load that are seen. Pure.

`watch.rule: window` is the rule of many deployments, for those who want it: its rate of false alarms depends on the traffic and
grows with the time that it runs (docs/benchmarks/watch.md).

With n requests in decode a step of plain decoding takes t(0, n) seconds and gives a token to each; a speculative step at draft
length gamma takes t(gamma, n) and gives 1 + accepted / drafts tokens. Speedup = (1 + accepted / drafts) t(0, n) / t(gamma, n),
with the times of a profile (Leviathan et al. 2023, theorem 3.8, with measured times).
"""

from pipeline.config.watch import WatchConfig
from pipeline.engines.counts import Counts
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.store.parsing import Amount, Flag, Moment, stored
from pipeline.watch.reading import Look

_HIGH_AGAIN = 0.05  # above the threshold at which acceptance is low no more
_PAYS_AGAIN = 1.03  # the speedup
_MEMORY = 1800.0  # seconds after which a look counts for a third


@stored(kw_only=False)
class Window:
    """The counts of the last looks, the newest last, that together have enough draft tokens."""

    counts: tuple[Counts, ...] = ()
    low: Flag = False
    since: Moment = 0.0  # Unix seconds

    @property
    def total(self) -> Counts | None:
        return sum(self.counts[1:], self.counts[0]) if self.counts else None

    def with_look(self, counts: Counts, time: float, settings: WatchConfig) -> "Window":
        """The window after one more look. The oldest looks are dropped as long as `watch.window` draft tokens remain."""
        kept = (*self.counts, counts)
        while len(kept) > 1 and _tokens(kept[1:]) >= settings.window:
            kept = kept[1:]
        now = Window(kept, self.low, self.since)
        rate = None if now.total is None else now.total.examined_acceptance_rate
        if rate is None or _tokens(kept) < settings.window:
            return now
        low = rate < settings.threshold + (_HIGH_AGAIN if self.low else 0.0)
        return Window(kept, low, self.since if low == self.low else time)


def _tokens(counts: tuple[Counts, ...]) -> float:
    return sum(counted.draft_tokens or 0.0 for counted in counts)


@stored
class Paying:
    """Whether speculation pays. `speedup`: an exponential mean over the looks; None before the first. `since`: Unix seconds."""

    speedup: Amount | None = None
    pays: Flag = True
    since: Moment = 0.0

    def with_look(self, speedup: float, time: float, seconds: float) -> "Paying":
        """Speculation stops to pay below a speedup of 1, and pays again from 1.03."""
        weight = 1.0 if self.speedup is None else 1 - 2.718281828459045 ** (-seconds / _MEMORY)
        mean = speedup if self.speedup is None else self.speedup + weight * (speedup - self.speedup)
        pays = mean >= (1.0 if self.pays else _PAYS_AGAIN)
        return Paying(speedup=mean, pays=pays, since=self.since if pays == self.pays else time)


def observed_speedup(look: Look, gamma: int, costs: StepCosts, context: int) -> float | None:
    """The speedup; None where the counters or the profile do not give it, such as at a load or draft length that was not
    measured."""
    counts, running = look.counts, look.running
    if counts is None or counts.accepted is None or not counts.drafts or not running or not costs.plain:
        return None
    batch = max(1, round(running))
    if gamma > costs.max_gamma or batch > costs.max_requests:
        return None
    step_GN = costs.steps(batch, context, gamma)
    return float((1 + counts.accepted / counts.drafts) * step_GN[0, batch - 1] / step_GN[gamma, batch - 1])

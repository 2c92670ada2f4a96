"""Does speculation pay at the acceptance and the load that are observed? Pure.

With n requests in decode a step of plain decoding takes t(0, n) seconds and gives a token to each; a speculative step at draft
length gamma takes t(gamma, n) and gives 1 + accepted / drafts tokens. Speedup = (1 + accepted / drafts) t(0, n) / t(gamma, n),
with the times of a profile (Leviathan et al. 2023, theorem 3.8, with measured times).
"""

from pipeline.latency.costs.step_costs import StepCosts
from pipeline.store.parsing import Amount, Flag, Moment, stored
from pipeline.watch.counts import Observation

_AGAIN = 1.03  # the speedup at which it pays again
_MEMORY = 1800.0  # seconds after which a look counts for a third


@stored
class Paying:
    """`speedup`: an exponential mean over the looks; None before the first. `since`: Unix seconds."""

    speedup: Amount | None = None
    pays: Flag = True
    since: Moment = 0.0


def observed_speedup(observation: Observation, gamma: int, costs: StepCosts, context: int) -> float | None:
    """None where the counters or the profile do not say it, such as at a load or draft length that was not measured."""
    counts, running = observation.counts, observation.running
    if counts is None or counts.accepted is None or not counts.drafts or not running or not costs.plain:
        return None
    batch = max(1, round(running))
    if gamma > costs.max_gamma or batch > costs.max_requests:
        return None
    step_GN = costs.steps(batch, context, gamma)
    return float((1 + counts.accepted / counts.drafts) * step_GN[0, batch - 1] / step_GN[gamma, batch - 1])


def updated(paying: Paying, speedup: float, time: float, seconds: float) -> Paying:
    """With one more look; speculation stops to pay below a speedup of 1, and pays again from 1.03."""
    weight = 1.0 if paying.speedup is None else 1 - 2.718281828459045 ** (-seconds / _MEMORY)
    mean = speedup if paying.speedup is None else paying.speedup + weight * (speedup - paying.speedup)
    pays = mean >= (1.0 if paying.pays else _AGAIN)
    return Paying(speedup=mean, pays=pays, since=paying.since if pays == paying.pays else time)

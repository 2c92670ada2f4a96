"""Sequential change detection whose rate of false alarms holds however long it runs. Pure; uses no engine and no clock.

An e-detector of Shiryaev-Roberts type (Shin, Ramdas and Rinaldo 2024, E-detectors: a nonparametric framework for sequential
change detection, New England Journal of Statistics in Data Science; arXiv 2203.03532): for increments L_t with E[L_t | past] <= 1
while there is no change,

    M_t = (M_{t-1} + w_t) L_t,    E[sum of w up to an alarm at M >= 1/alpha] >= 1/alpha,

because M_t less the sum of w is a supermartingale. With w_t the time since the last look the mean time to a false alarm is at
least 1/alpha, whatever the rate of looks. The mean of detectors for several sizes of the change is a detector too (section 4).
"""

import math
from collections.abc import Sequence

from pipeline.store.parsing import Amount, Finite, Moment, stored

_NONE = -1e300  # log of no evidence; finite, because it is stored as JSON


@stored(kw_only=False)
class Component:
    """The evidence for a change of one size. `log_evidence`: log M. `cusum`: of the increments, started anew at each minimum;
    `since`: Unix seconds at which it was last zero, the likeliest time of the change (Page 1954)."""

    log_evidence: Finite = _NONE
    cusum: Amount = 0.0
    since: Moment = 0.0


@stored(kw_only=False)
class Detector:
    """One component for each size of a change, the smallest first."""

    components: tuple[Component, ...]

    @property
    def log_evidence(self) -> float:
        """log of the mean of M over the components."""
        return log_mean([component.log_evidence for component in self.components])

    @property
    def since(self) -> float:
        """When the change began, by the component with the most evidence."""
        return max(self.components, key=lambda component: component.log_evidence).since


def log_mean(logs: Sequence[float]) -> float:
    """log of the mean of numbers that are given by their logs."""
    most = max(logs)
    return most + math.log(math.fsum(math.exp(log - most) for log in logs) / len(logs))


def fresh(sizes: int) -> Detector:
    """A detector without evidence."""
    return Detector((Component(),) * sizes)


def updated(detector: Detector, log_increments: Sequence[float], weight: float, began: float) -> Detector:
    """The detector after one more observation that began at `began`. `log_increments`: log L, by component. `weight`: its w."""
    return Detector(
        tuple(
            _added(component, increment, weight, began)
            for component, increment in zip(detector.components, log_increments, strict=True)
        )
    )


def _added(component: Component, increment: float, weight: float, began: float) -> Component:
    log_weight = math.log(weight) if weight > 0 else _NONE
    high, low = max(component.log_evidence, log_weight), min(component.log_evidence, log_weight)
    log_evidence = high + math.log1p(math.exp(low - high)) + increment
    since = began if component.cusum <= 0 else component.since
    return Component(max(log_evidence, _NONE), max(0.0, component.cusum + increment), since)


def rate_increments(
    trials: float, successes: float, null: float, alternatives: Sequence[float], design_effect: float
) -> list[float]:
    """log L of a share against each alternative, all of them on one side of `null`.

    The likelihood ratio of binomial counts to the power of 1 / design effect. Of clusters of so many trials that agree with one
    another it is exactly the likelihood ratio of the clusters; of independent trials its mean is below 1 by Jensen's inequality;
    it is that of the quasi-likelihood (McCullagh and Nelder 1989, section 9.2). A share on the other side of `null` lowers it.
    An alternative that is `null` itself has no evidence, L = 0: with L = 1 the time alone would be evidence.
    """
    failures = trials - successes
    return [
        (successes * math.log(share / null) + failures * math.log((1 - share) / (1 - null))) / design_effect
        if share != null
        else _NONE
        for share in alternatives
    ]


def mean_increments(excess: float, shifts: Sequence[float], variance: float) -> list[float]:
    """log L of a sub-Gaussian observation, `excess` above the null's mean, for each size of the shift."""
    return [shift / variance * (excess - shift / 2) for shift in shifts]

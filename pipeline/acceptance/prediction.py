"""Where a ratio of sums over N other prompts will be: the interval to compare counters of production with. numpy and scipy only.

A confidence interval states where the figure over all prompts is. Counters over N prompts differ from that by their own sample
too, so they are outside of it far more often than one minus its confidence, however good the examination is.

Prediction interval for the mean of N further observations (Hahn and Meeker 1991, Statistical Intervals, 4.8): the estimate +- t s
sqrt(1/n + 1/N). Here s comes from the linearised residuals of the ratio, as for the confidence interval (`intervals.py`), with
the conversation as unit: N prompts are taken to be of as many conversations as N examined ones. What one decode adds to the
expectation that the examination computes is random in the N prompts only. Domains are no strata: which domains the N prompts are
of is random as well.
"""

from scipy.special import stdtrit

from pipeline.acceptance.intervals import Interval, standard_errors
from pipeline.acceptance.schema import Bounds


def prediction_interval(estimate: Interval, decode_variance: float, prompts: int, confidence: float) -> Bounds:
    """Bounds of the figure over `prompts` prompts that were not examined, drawn as the examined ones were.

    `estimate`: over the n examined prompts in one stratum. `decode_variance`: what one decode of these n would add to the
    variance of their figure.
    """
    n = estimate.prompts
    if estimate.low == float("-inf"):
        return Bounds(None, None)
    own = 0.0 if estimate.low == estimate.high else estimate.error**2
    variance = own + (own + decode_variance) * n / prompts
    if variance == 0:
        return Bounds(float(estimate.value), float(estimate.value))
    if own == 0:
        dof, skewness = float("inf"), 0.0
    else:
        dof = estimate.dof
        units, width = estimate.units, float(stdtrit(dof, 0.5 + confidence / 2))
        skewness = _skewness(estimate.skewness, units, prompts * units / n, variance / own, width)
    below, above = standard_errors(dof, skewness, confidence)
    return Bounds(float(estimate.value - below * variance**0.5), float(estimate.value + above * variance**0.5))


def _skewness(estimate: float, n: int, fresh: float, width: float, t: float) -> float:
    """The skewness of an estimate whose confidence interval would lean as the prediction interval does.

    With g the skewness of one of n units, h the standard error in units of a unit's, and N = `fresh` further units, the statistic
    of the prediction has the mean g / (2 n h) and the third cumulant (1 / N + 2 / n) g / h. So its quantile moves by [1 / (2 n) +
    (1 / N + 2 / n) (t^2 - 1) / 6] g / h (Cornish and Fisher 1938), and that of a mean with the skewness A by (2 t^2 + 1) A / 6;
    for infinite N they agree.
    """
    g, h = estimate * n**0.5, (width / n) ** 0.5
    moved = (1 / (2 * n) + (1 / fresh + 2 / n) * (t**2 - 1) / 6) * g / h
    return float(6 * moved / (2 * t**2 + 1))

"""Distribution of request latency, from arrival to last token, and its quantiles. Pure."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, gammaincc, ndtr

from pipeline.latency.load.capacity import Floats, RequestSizes
from pipeline.latency.load.request_latency import RequestLatency
from pipeline.latency.load.waiting import WaitingTime

_RARE = 1e-6  # share of requests too small to change a quantile up to 0.99
_NO_SKEW = 1e-5  # a smaller skewness changes no probability by more than 1e-6; the shape would be lost to rounding
_TAIL_SPREADS = 12  # standard deviations above the largest mean at which the search for a quantile starts
_FEW = 24  # sizes and waiting times in a first search
_NEAR = 0.02  # relative distance at which the search around its result begins


@dataclass(frozen=True, eq=False)
class _Requests:
    """A share of all requests: those that found a free place, or those that waited. In seconds, by request size W and quantile of
    the waiting time K."""

    share: float
    mean_WK: Floats
    spread_WK: Floats  # standard deviation
    skew_WK: Floats

    def thinned(self) -> "_Requests":
        """Few of the sizes and waiting times, evenly spread: a quantile of them is close to that of all."""
        some = tuple(slice((-(-size // _FEW)) // 2, None, -(-size // _FEW)) for size in self.mean_WK.shape)
        return replace(self, mean_WK=self.mean_WK[some], spread_WK=self.spread_WK[some], skew_WK=self.skew_WK[some])

    def cdf(self, seconds: float) -> float:
        """Share of these requests that take at most `seconds`."""
        return float(_pearson3((seconds - self.mean_WK) / self.spread_WK, self.skew_WK).mean())


@dataclass(frozen=True, eq=False)
class LatencyDistribution:
    """A mixture over request sizes and waiting times of Pearson type III distributions."""

    classes: tuple[_Requests, ...]

    def quantile(self, quantile: float) -> float:
        """The quantile in seconds. ValueError unless 0 < quantile < 1."""
        if not 0 < quantile < 1:
            raise ValueError(f"quantile {quantile}: not between 0 and 1")

        begin = _solved(tuple(request_class.thinned() for request_class in self.classes), quantile, None)
        return _solved(self.classes, quantile, begin)


def _solved(classes: tuple[_Requests, ...], quantile: float, begin: float | None) -> float:
    """Seconds within which the share `quantile` of all requests is done. Most of the time goes into probabilities, so the search
    begins around `begin` where it is given."""

    @cache  # the ends of the search are asked for again
    def excess(seconds: float) -> float:
        return sum(request_class.share * request_class.cdf(seconds) for request_class in classes) - quantile

    if begin is None:
        low, most = (
            0.0,
            max(
                float(request_class.mean_WK.max() + _TAIL_SPREADS * request_class.spread_WK.max())
                for request_class in classes
            ),
        )
    else:
        low, most = begin * (1 - _NEAR), begin * (1 + _NEAR)
        while low > 1e-9 * begin and excess(low) > 0:
            low, most = low - 4 * (most - low), low
        low = max(low, 0.0)
    while excess(most) < 0:
        low, most = most, most + 4 * (most - low)
    return float(brentq(excess, low, most))


def latency_distribution(
    sizes: RequestSizes, in_batch: RequestLatency, offset: float, waiting: WaitingTime, queued: float
) -> LatencyDistribution:
    """For each request size a Pearson type III distribution with three moments: mean, variance (other requests and random
    acceptance) and skewness. The share `queued` waits first and then decodes in a full batch. `offset`: seconds that are
    the same for every request."""
    acceptance_W = sizes.variance_W * in_batch.mean**2
    classes = []
    for moments, share, waits_K, variance_K in (
        (in_batch.direct, 1 - queued, np.zeros(1), np.zeros(1)),
        (in_batch.queued, queued, waiting.seconds_K, waiting.variance_K),
    ):
        if share < _RARE:
            continue
        mean_W = offset + np.interp(sizes.mean_W, in_batch.size_S, moments.mean_S)
        interference_W = np.interp(sizes.mean_W, in_batch.size_S, moments.variance_S)
        spread_WK = np.sqrt((interference_W + acceptance_W)[:, None] + variance_K) + 1e-9 * in_batch.mean
        skew_W = np.interp(sizes.mean_W, in_batch.size_S, moments.skew_S)
        skew_WK = skew_W[:, None] * (interference_W[:, None] / spread_WK**2) ** 1.5
        classes.append(_Requests(share, mean_W[:, None] + waits_K, spread_WK, skew_WK))
    return LatencyDistribution(tuple(classes))


def normal_mixture(mean_W: Floats, spread_W: Floats) -> LatencyDistribution:
    """The latency of requests that each have a normal distribution, without others that come and go. In seconds."""
    mean_WK, spread_WK = mean_W[:, None], spread_W[:, None] + 1e-9 * float(mean_W.mean())
    return LatencyDistribution((_Requests(1.0, mean_WK, spread_WK, np.zeros_like(mean_WK)),))


def _pearson3(score_WK: Floats, skew_WK: Floats) -> Floats:
    """Cumulative probabilities of Pearson type III distributions: shifted gamma distributions, reflected for a negative skewness.
    `scipy.stats` takes twice as long and more."""
    below_WK: Floats = ndtr(score_WK)
    for of_WK, gamma_cdf in ((skew_WK >= _NO_SKEW, gammainc), (skew_WK <= -_NO_SKEW, gammaincc)):
        skew_P = skew_WK[of_WK]
        shape_P = 4 / skew_P**2
        below_WK[of_WK] = gamma_cdf(shape_P, np.maximum(shape_P + 2 / skew_P * score_WK[of_WK], 0.0))
    return below_WK

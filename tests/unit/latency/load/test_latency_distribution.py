"""Quantiles of a distribution of latencies."""

import numpy as np
import pytest

from pipeline.latency.load import latency_distribution as module
from pipeline.latency.load.latency_distribution import LatencyDistribution


def _requests(share: float, mean_W: np.ndarray, spread: float, skew: float) -> module._Requests:
    mean_WK = mean_W[:, None] + np.linspace(0.0, 0.3, 40)
    return module._Requests(share, mean_WK, np.full(mean_WK.shape, spread), np.full(mean_WK.shape, skew))


# Requests of sizes in order; a few slow ones, which a part of the sizes has or has not; one size; two kinds that are far apart.
_ORDERED = np.linspace(1.0, 3.0, 200)
_FEW_SLOW = np.where(np.arange(200) % 9 == 4, 50.0, 1.0)
DISTRIBUTIONS = {
    "ordered": ((1.0, _ORDERED, 0.2, 0.5),),
    "a few are slow, all of them in the part": ((1.0, _FEW_SLOW, 0.01, 0.0),),
    "a few are slow, none of them in the part": ((1.0, np.roll(_FEW_SLOW, 1), 0.01, 0.0),),
    "one size": ((1.0, np.ones(1), 0.01, -0.5),),
    "two kinds": ((0.7, _ORDERED, 1e-4, 0.0), (0.3, 100 * _ORDERED, 1e-4, 1.0)),
}


@pytest.mark.parametrize("quantile", [0.01, 0.5, 0.88, 0.95, 0.99])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_quantile_is_that_of_all_requests(name: str, quantile: float) -> None:
    """However far it is from that of the part from which the search begins."""
    found = LatencyDistribution(tuple(_requests(*one) for one in DISTRIBUTIONS[name]))
    seconds = found.quantile(quantile)
    below, above = (
        sum(one.share * one.cdf(at) for one in found.classes) for at in (seconds * (1 - 1e-9), seconds * (1 + 1e-9))
    )
    assert below <= quantile <= above

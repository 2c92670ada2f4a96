"""What a server's steps cost, from measured seconds a token: the part that any step has and the part of each request in it. Pure.

A step of n requests that drafts gamma tokens in each takes

    verify + gamma * draft  +  n * (verify_each + gamma * draft_each)   [ + experts * phi(n * (gamma + 1)) ]

seconds (Kong et al. 2026, arXiv 2605.15051); phi(T) = 1 - (1 - m/M)^T is the share of M experts that T tokens wake, m at a time.
Putting a draft token to the target costs as drafting it does, by token, so it is in `draft` and `draft_each`: no measurement from
outside can tell the two apart. A request is also held up by the prefills of others, where it is known how many a step brings.
Coefficients are not negative, and relative errors are what is made small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit

from pipeline.errors import UsageError

Floats = NDArray[np.float64]

NAMES = ("verify", "draft", "verify_each", "draft_each")
EXPERTS, PREFILL = "experts", "prefill"
_RANK_TOLERANCE = 1e-3  # least ratio of singular values at which columns are told apart


@dataclass(frozen=True)
class Experts:
    """Of a mixture: `awake` of `all` for each token."""

    active: int
    total: int

    def share(self, tokens: ArrayLike) -> Floats:
        """phi: the share of experts whose weights a step of so many tokens reads, were tokens to choose independently."""
        return 1 - (1 - self.active / self.total) ** np.asarray(tokens, dtype=np.float64)


@dataclass(frozen=True)
class Coefficient:
    """Seconds, with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LinearCosts:
    """A fitted server."""

    coefficients: dict[str, Coefficient]
    confounded: tuple[str, ...]  # whose sum alone the measurements know
    mape: float  # mean relative error over the measurements it was fitted to
    r2: float
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """Of a step of `batch` requests at a draft length, without prefills; broadcast against each other."""
        values = np.array([one.value for name, one in self.coefficients.items() if name != PREFILL])
        seconds: Floats = columns(batch, gamma, self.experts) @ values
        return seconds


def fit_costs(
    batch_R: ArrayLike,
    gamma_R: ArrayLike,
    step_seconds_R: ArrayLike,
    experts: Experts | None = None,
    prefills_R: ArrayLike | None = None,
    confidence: float = 0.95,
) -> LinearCosts:
    """From R measured steps; `prefills_R`: those of others that came with each. UsageError where there are too few, or only
    one load, or seconds that are none."""
    batch_R, gamma_R, seconds_R = (np.asarray(one, dtype=np.float64) for one in (batch_R, gamma_R, step_seconds_R))
    _check(batch_R, gamma_R, seconds_R)
    names = [*NAMES, *([EXPERTS] if experts else [])]
    columns_RK = columns(batch_R, gamma_R, experts)
    if not gamma_R.any():  # plain decoding alone says nothing of drafts
        columns_RK[:, [names.index("draft"), names.index("draft_each")]] = 0.0
    if prefills_R is not None:
        names.append(PREFILL)
        columns_RK = np.column_stack([columns_RK, np.asarray(prefills_R, dtype=np.float64)])
    relative_RK = columns_RK / seconds_R[:, None]
    values = least_squares(columns_RK, seconds_R)
    predicted_R = columns_RK @ values
    error_R = predicted_R / seconds_R - 1
    r2 = 1 - ((predicted_R - seconds_R) ** 2).sum() / max(((seconds_R - seconds_R.mean()) ** 2).sum(), 1e-300)
    half_width_K = _half_widths(relative_RK, error_R, values, confidence)
    coefficients = {
        name: Coefficient(float(value), float(max(0.0, value - half)), float(value + half))
        for name, value, half in zip(names, values, half_width_K, strict=True)
    }
    return LinearCosts(coefficients, _confounded(relative_RK, names), float(np.abs(error_R).mean()), float(r2), experts)


def least_squares(columns_RK: Floats, seconds_R: Floats, ridge: float = 0.0) -> Floats:
    """The costs, none below 0, that make relative errors small; `ridge` weighs their own squares, each against what its column
    amounts to."""
    relative_RK = columns_RK / seconds_R[:, None]
    size_K = np.sqrt((relative_RK**2).mean(0))
    size_K[size_K == 0] = 1.0
    ridge_KK = np.sqrt(ridge * len(seconds_R)) * np.eye(len(size_K))
    target = np.append(np.ones(len(seconds_R)), np.zeros(len(size_K)))
    scaled_K, _ = nnls(np.vstack([relative_RK / size_K, ridge_KK]), target)
    values_K: Floats = scaled_K / size_K
    return values_K


def columns(batch: ArrayLike, gamma: ArrayLike, experts: Experts | None) -> Floats:
    """What each cost is multiplied with, (..., K), in the order of `NAMES`, experts last."""
    batch, gamma = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
    columns = [np.ones_like(batch), gamma, batch, batch * gamma]
    if experts:
        columns.append(experts.share(batch * (gamma + 1)))
    return np.stack(columns, axis=-1)


def _check(batch_R: Floats, gamma_R: Floats, seconds_R: Floats) -> None:
    wrong = np.flatnonzero(~(np.isfinite(seconds_R) & (seconds_R > 0)))
    if len(wrong):
        raise UsageError(f"measurement {wrong[0] + 1}: {seconds_R[wrong[0]]:g} s is no time that a step takes")
    wrong = np.flatnonzero(~((batch_R > 0) & (gamma_R >= 0)))
    if len(wrong):
        raise UsageError(
            f"measurement {wrong[0] + 1}: {batch_R[wrong[0]]:g} requests at draft length {gamma_R[wrong[0]]:g}"
        )
    if len(set(batch_R.tolist())) < 2:
        raise UsageError(
            f"all {len(batch_R)} measurements are of one load: what a further request adds cannot be known; measure at two "
            "loads at least"
        )
    if len(set(zip(batch_R.tolist(), gamma_R.tolist(), strict=True))) < len(NAMES) and gamma_R.any():
        raise UsageError(f"{len(batch_R)} measurements are too few for {len(NAMES)} costs")


def _half_widths(relative_RK: Floats, error_R: Floats, values_K: Floats, confidence: float) -> Floats:
    """Of the intervals: least squares on the coefficients that are not held at 0; infinite where nothing is known."""
    free = np.flatnonzero(values_K > 0)
    left = len(error_R) - len(free)
    half_width_K = np.full(len(values_K), np.inf)
    if left > 0 and len(free):
        variance = (error_R**2).sum() / left
        covariance = np.linalg.pinv(relative_RK[:, free].T @ relative_RK[:, free]) * variance
        half_width_K[free] = stdtrit(left, 0.5 + confidence / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return half_width_K


def _confounded(relative_RK: Floats, names: Sequence[str]) -> tuple[str, ...]:
    """Coefficients that can be traded for each other without a trace in the measurements."""
    norm_K = np.linalg.norm(relative_RK, axis=0)
    _, singular, directions = np.linalg.svd(relative_RK / np.where(norm_K > 0, norm_K, 1.0), full_matrices=True)
    singular = np.append(singular, np.zeros(len(names) - len(singular)))
    null_space = directions[singular < _RANK_TOLERANCE * singular[0]]
    return tuple(
        name for name, weights in zip(names, null_space.T, strict=True) if np.abs(weights).max(initial=0.0) > 0.1
    )

"""Linear costs of a decoding step, fitted to measured step times. Pure.

A step with n requests and draft length gamma takes

    verify + gamma * draft  +  n * (verify_each + gamma * draft_each)   [ + experts * phi(n * (gamma + 1)) ]

seconds (Kong et al. 2026, arXiv 2605.15051). phi(T) = 1 - (1 - m/M)^T is the share of the M experts of a mixture that T
tokens activate, m experts per token. Verifying a draft token and drafting it scale alike, so both are in `draft` and
`draft_each`: step times alone cannot separate them. If the number of prefills per step is known, a cost per prefill is fitted
as well. The fit is non-negative least squares of relative errors.
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
_SAME_LOAD = 1.08  # ratio of two numbers of requests up to which they are one load
_RANK_TOLERANCE = 1e-3  # singular values below this share of the largest count as 0


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: `active` of `total` experts for each token."""

    active: int
    total: int

    def share(self, tokens: ArrayLike) -> Floats:
        """phi: the expected share of experts that a step with `tokens` tokens activates, if tokens choose independently."""
        return 1 - (1 - self.active / self.total) ** np.asarray(tokens, dtype=np.float64)


@dataclass(frozen=True)
class Coefficient:
    """A cost in seconds with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LinearCosts:
    """Fitted linear step costs."""

    coefficients: dict[str, Coefficient]
    confounded: tuple[str, ...]  # coefficients that the measurements cannot separate
    mape: float  # mean absolute relative error on the fitted measurements, as a share
    r2: float
    experts: Experts | None

    def step_seconds(self, batch: ArrayLike, gamma: ArrayLike) -> Floats:
        """Seconds of a step without prefills, for `batch` requests at draft length `gamma`; the arguments are broadcast."""
        values = np.array([coefficient.value for name, coefficient in self.coefficients.items() if name != PREFILL])
        seconds: Floats = columns(batch, gamma, self.experts) @ values
        return seconds


def is_one_load(batch_R: ArrayLike, gamma_R: ArrayLike) -> bool:
    """Whether each draft length has one load: then no cost per request can be told."""
    batch_R, gamma_R = np.asarray(batch_R, dtype=np.float64), np.asarray(gamma_R, dtype=np.float64)
    groups = [batch_R[gamma_R == gamma] for gamma in set(gamma_R.tolist())]
    return all(bool(group.max() <= _SAME_LOAD * group.min()) for group in groups)


def fit_costs(
    batch_R: ArrayLike,
    gamma_R: ArrayLike,
    step_seconds_R: ArrayLike,
    experts: Experts | None = None,
    prefills_R: ArrayLike | None = None,
    confidence: float = 0.95,
) -> LinearCosts:
    """Fit R measured steps. `prefills_R`: prefills of other requests per step. Of one load all costs are per step. UsageError for
    too few measurements, one load at one draft length, or invalid values."""
    batch_R, gamma_R, seconds_R = (
        np.asarray(values, dtype=np.float64) for values in (batch_R, gamma_R, step_seconds_R)
    )
    _check(batch_R, gamma_R, seconds_R)
    names = [*NAMES, *([EXPERTS] if experts else [])]
    columns_RK = columns(batch_R, gamma_R, experts)
    if not gamma_R.any():  # plain decoding has no draft costs
        columns_RK[:, [names.index("draft"), names.index("draft_each")]] = 0.0
    if is_one_load(batch_R, gamma_R):
        columns_RK[:, [names.index("verify_each"), names.index("draft_each")]] = 0.0
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
    """Non-negative least squares of relative errors, (K,). `ridge`: weight of the penalty on squared coefficients, each scaled
    by the size of its column."""
    relative_RK = columns_RK / seconds_R[:, None]
    rows, count = relative_RK.shape
    size_K = np.sqrt(np.einsum("rk,rk->k", relative_RK, relative_RK) / rows)
    size_K[size_K == 0] = 1.0
    system_SK, target_S = np.zeros((rows + count, count)), np.zeros(rows + count)
    system_SK[:rows] = relative_RK / size_K
    np.fill_diagonal(system_SK[rows:], (ridge * rows) ** 0.5)
    target_S[:rows] = 1.0
    scaled_K, _ = nnls(system_SK, target_S)
    values_K: Floats = scaled_K / size_K
    return values_K


def columns(batch: ArrayLike, gamma: ArrayLike, experts: Experts | None) -> Floats:
    """Design matrix, (..., K): the factor of each cost, in the order of `NAMES`, experts last."""
    batch, gamma = np.broadcast_arrays(np.asarray(batch, dtype=np.float64), np.asarray(gamma, dtype=np.float64))
    return np.stack(linear_terms(batch, gamma, experts), axis=-1)


def linear_terms(batch: Floats, gamma: Floats, experts: Experts | None) -> list[Floats]:
    """The columns of the design matrix; both arguments have the same shape."""
    terms = [np.ones_like(batch), gamma, batch, batch * gamma]
    return [*terms, experts.share(batch * (gamma + 1))] if experts else terms


def _check(batch_R: Floats, gamma_R: Floats, seconds_R: Floats) -> None:
    wrong = np.flatnonzero(~(np.isfinite(seconds_R) & (seconds_R > 0)))
    if len(wrong):
        raise UsageError(f"measurement {wrong[0] + 1}: {seconds_R[wrong[0]]:g} s is not a valid step time")
    wrong = np.flatnonzero(~((batch_R > 0) & (gamma_R >= 0)))
    if len(wrong):
        raise UsageError(
            f"measurement {wrong[0] + 1}: {batch_R[wrong[0]]:g} requests at draft length {gamma_R[wrong[0]]:g} is not valid"
        )
    if is_one_load(batch_R, gamma_R):
        if len(set(gamma_R.tolist())) < 2:
            raise UsageError(
                f"all {len(batch_R)} measurements have the same number of requests, so the cost per request is unknown; measure "
                "at least two, or several draft lengths at this one"
            )
    elif len(set(zip(batch_R.tolist(), gamma_R.tolist(), strict=True))) < len(NAMES) and gamma_R.any():
        raise UsageError(f"{len(batch_R)} measurements are too few for {len(NAMES)} costs")


def _half_widths(relative_RK: Floats, error_R: Floats, values_K: Floats, confidence: float) -> Floats:
    """Half widths of the confidence intervals, from least squares on the coefficients above 0; infinite if undetermined."""
    free = np.flatnonzero(values_K > 0)
    left = len(error_R) - len(free)
    half_width_K = np.full(len(values_K), np.inf)
    if left > 0 and len(free):
        variance = (error_R**2).sum() / left
        covariance = np.linalg.pinv(relative_RK[:, free].T @ relative_RK[:, free]) * variance
        half_width_K[free] = stdtrit(left, 0.5 + confidence / 2) * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return half_width_K


def _confounded(relative_RK: Floats, names: Sequence[str]) -> tuple[str, ...]:
    """Names of the coefficients in the null space of the design matrix: the measurements cannot separate them."""
    norm_K = np.linalg.norm(relative_RK, axis=0)
    _, singular, directions = np.linalg.svd(relative_RK / np.where(norm_K > 0, norm_K, 1.0), full_matrices=True)
    singular = np.append(singular, np.zeros(len(names) - len(singular)))
    null_space = directions[singular < _RANK_TOLERANCE * singular[0]]
    return tuple(
        name for name, weights in zip(names, null_space.T, strict=True) if np.abs(weights).max(initial=0.0) > 0.1
    )

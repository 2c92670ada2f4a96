"""The benefit of a draft: time per token and throughput, with speculation and without. Pure.

At a stated load the figures are predictions of the queueing model; without one they follow from forward times alone at batch 1,
which is an upper bound for a server.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.acceptance.schema import MeasuredTimes
from pipeline.config.quantiles import quantile_name
from pipeline.judgement.schema import BASELINE, CANDIDATE, FORWARD_TIMES, LOAD, PLAIN
from pipeline.latency.costs.speedup import ForwardTimes
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.prediction import LoadPoint, chosen_lengths, predict
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.workload import Workload


def benefit_at_load(
    workload: Workload, step_costs: StepCosts, rate: float, cap: int, gamma: int, quantiles: Sequence[float]
) -> dict[str, Any]:
    """Latency (mean and these quantiles) and throughput of the candidate and of plain decoding, at `rate` requests per second and
    at other loads."""
    lengths_N = chosen_lengths(workload, step_costs, cap, gamma)
    tokens = float(workload.tokens_W.mean())
    stated = predict(workload, step_costs, lengths_N, [rate])
    sides = {CANDIDATE: stated.points[0].speculative, PLAIN: stated.points[0].plain if step_costs.plain else None}
    limits = {CANDIDATE: stated.speculative_limit, PLAIN: stated.plain_limit}
    return {
        "basis": LOAD,
        "requests_per_second": rate,
        "max_batch": cap,
        "gamma": gamma,
        "sides": {
            side: _side(found, limits[side], tokens, quantiles) for side, found in sides.items() if found is not None
        },
        "by_load": [_point(point, quantiles) for point in predict(workload, step_costs, lengths_N, []).points],
    }


def _side(found: Latency, limit: float, tokens: float, quantiles: Sequence[float]) -> dict[str, Any]:
    return {
        "ms_per_token": 1000 * found.service / tokens,
        **_latencies(found, quantiles),
        "tokens_per_second": limit * tokens,  # at capacity
    }


def _point(point: LoadPoint, quantiles: Sequence[float]) -> dict[str, Any]:
    return {
        "requests_per_second": point.rate,
        "speedup": point.speedup,
        CANDIDATE: point.speculative and _latencies(point.speculative, quantiles),
        PLAIN: point.plain and _latencies(point.plain, quantiles),
    }


def _latencies(found: Latency, quantiles: Sequence[float]) -> dict[str, Any]:
    return {
        "mean_seconds": found.mean,
        "quantile_seconds": {quantile_name(quantile): found.quantile(quantile) for quantile in quantiles},
    }


def benefit_of_forward_times(
    times: Mapping[str, MeasuredTimes | None], drafts: Mapping[str, Mapping[str, Any]], gamma: int
) -> dict[str, Any] | None:
    """For one request at a time. `times`: by side, `forward_times` of its examination; `drafts` as in `compare_drafts`. None
    where the candidate has no times."""
    measured = times.get(CANDIDATE)
    if measured is None or CANDIDATE not in drafts:
        return None
    plain = measured.target[1]
    sides = {PLAIN: {"ms_per_token": 1000 * plain, "tokens_per_second": 1 / plain}}
    for side in (CANDIDATE, BASELINE):
        found = times.get(side)
        if found and side in drafts:
            round_seconds = ForwardTimes(found.target, found.draft).round(gamma)
            # A decode's rounds yield 1 + accepted / rounds tokens under every convention.
            seconds = round_seconds / drafts[side]["mean_acceptance_length"][str(gamma)]
            # A ratio within one examination; times of two examinations differ by what else the machine did.
            speedup = found.target[1] / seconds
            sides[side] = {
                "ms_per_token": 1000 * plain / speedup,
                "tokens_per_second": speedup / plain,
                "speedup": speedup,
            }
    return {
        "basis": FORWARD_TIMES,
        "device": measured.device,
        "context": measured.context,
        "gamma": gamma,
        "target_ms": 1000 * plain,
        "verify_ms": 1000 * measured.target[gamma + 1],
        "draft_ms": 1000 * measured.draft,
        "sides": sides,
    }

"""The benefit of a draft: time per token and throughput, with speculation and without. Pure.

At a stated load the figures are predictions of the queueing model; without one they follow from forward times alone at batch 1,
which is an upper bound for a server.
"""

from collections.abc import Mapping, Sequence

from pipeline.acceptance.schema import Figures, MeasuredTimes
from pipeline.config.quantiles import quantile_name
from pipeline.judgement.at_load import StatedLoad, covered
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    PLAIN,
    BenefitAtLoad,
    BenefitOfForwardTimes,
    LatencyFigures,
    LoadFigures,
    Side,
    SideAlone,
    SideAtLoad,
)
from pipeline.latency.costs.speedup import ForwardTimes
from pipeline.latency.load.prediction import LoadPoint, chosen_lengths, predict
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.workload import Workload


def benefit_at_load(workload: Workload, load: StatedLoad) -> BenefitAtLoad:
    """Latency and throughput of the candidate and of plain decoding, at the stated load and at others."""
    workload, step_costs, quantiles = covered(load, workload), load.step_costs, load.quantiles
    lengths_N = chosen_lengths(workload, step_costs, load.max_batch, load.gamma)
    tokens = float(workload.tokens_W.mean())
    stated = predict(workload, step_costs, lengths_N, [load.requests_per_second])
    point = stated.points[0]
    sides: dict[Side, Latency | None] = {
        CANDIDATE: point.speculative,
        PLAIN: point.plain if step_costs.plain else None,
    }
    limits: dict[Side, float] = {CANDIDATE: stated.speculative_limit, PLAIN: stated.plain_limit}
    return BenefitAtLoad(
        requests_per_second=load.requests_per_second,
        max_batch=load.max_batch,
        gamma=load.gamma,
        sides={
            side: SideAtLoad(
                *_latencies(found, quantiles),
                1000 * found.service / tokens,
                limits[side] * tokens,  # at capacity
            )
            for side, found in sides.items()
            if found is not None
        },
        by_load=[_point(point, quantiles) for point in predict(workload, step_costs, lengths_N, []).points],
    )


def _point(point: LoadPoint, quantiles: Sequence[float]) -> LoadFigures:
    return LoadFigures(
        point.rate,
        point.speedup,
        None if point.speculative is None else LatencyFigures(*_latencies(point.speculative, quantiles)),
        None if point.plain is None else LatencyFigures(*_latencies(point.plain, quantiles)),
    )


def _latencies(found: Latency, quantiles: Sequence[float]) -> tuple[float, dict[str, float]]:
    """The mean, and the quantiles by name."""
    return found.mean, {quantile_name(quantile): found.quantile(quantile) for quantile in quantiles}


def benefit_of_forward_times(
    times: Mapping[Side, MeasuredTimes | None], drafts: Mapping[Side, Figures], gamma: int
) -> BenefitOfForwardTimes | None:
    """For one request at a time. By side: `times` of its examination, and its figures. None where the candidate has no times."""
    measured = times.get(CANDIDATE)
    if measured is None or CANDIDATE not in drafts:
        return None
    plain = measured.target[1]
    sides = {PLAIN: SideAlone(1000 * plain, 1 / plain, 1.0)}
    for side in (CANDIDATE, BASELINE):
        found = times.get(side)
        if found and side in drafts:
            # A decode's rounds yield 1 + accepted / rounds tokens under every convention.
            round_seconds = ForwardTimes(found.target, found.draft).round(gamma)
            seconds = round_seconds / drafts[side].mean_acceptance_length[gamma]
            # A ratio within one examination; times of two examinations differ by what else the machine did.
            speedup = found.target[1] / seconds
            sides[side] = SideAlone(1000 * plain / speedup, speedup / plain, speedup)
    return BenefitOfForwardTimes(
        device=measured.device,
        context=measured.context,
        gamma=gamma,
        target_ms=1000 * plain,
        verify_ms=1000 * measured.target[gamma + 1],
        draft_ms=1000 * measured.draft,
        sides=sides,
    )

"""The benefit of a draft at a stated load: predictions of the queueing model, with speculation and without. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.quantiles import quantile_name
from pipeline.judgement.at_load import StatedLoad, covered, latency
from pipeline.judgement.policy import Case
from pipeline.judgement.schema import (
    CANDIDATE,
    PLAIN,
    Benefit,
    LatencyFigures,
    LoadFigures,
    Side,
    SideAtLoad,
    TokenRates,
)
from pipeline.latency.load.closed_loop import curves
from pipeline.latency.load.prediction import LoadPoint, chosen_lengths, predict
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.workload import Workload, measured_lengths


def benefit_at_load(workload: Workload, load: StatedLoad) -> Benefit:
    """Latency and throughput of the candidate and of plain decoding, at the stated load and at others; and by number of requests,
    at each measured draft length beside the stated one."""
    workload, step_costs, quantiles = covered(load, workload), load.step_costs, load.quantiles
    lengths_N = chosen_lengths(workload, step_costs, load.max_batch, load.gamma)
    tokens = float(workload.tokens_W.mean())
    stated = predict(workload, step_costs, lengths_N, [load.requests_per_second])
    point = stated.points[0]
    sides: dict[Side, Latency | None] = {
        CANDIDATE: point.speculative,
        PLAIN: point.plain if step_costs.plain else None,
    }
    lengths = sorted({*measured_lengths(workload, step_costs), load.gamma})
    limits: dict[Side, float] = {CANDIDATE: stated.speculative_limit, PLAIN: stated.plain_limit}
    return Benefit(
        requests_per_second=load.requests_per_second,
        max_batch=load.max_batch,
        gamma=load.gamma,
        sides={
            side: SideAtLoad(
                *_latencies(latency, quantiles),
                1000 * latency.service / tokens,
                limits[side] * tokens,  # at capacity
            )
            for side, latency in sides.items()
            if latency is not None
        },
        by_load=[_point(point, quantiles) for point in predict(workload, step_costs, lengths_N, []).points],
        output_tokens=tokens,
        by_draft_length={
            gamma: [TokenRates(loop.concurrency, loop.each, loop.throughput) for loop in loops]
            for gamma, loops in curves(workload, step_costs, load.max_batch, lengths).items()
        },
    )


def with_load(case: Case, load: StatedLoad, workload: Workload, confidence: float) -> Case:
    """The case with what is predicted of the candidate at a stated load."""
    return replace(case, served=latency(load, workload, confidence), benefit=benefit_at_load(workload, load))


def _point(point: LoadPoint, quantiles: Sequence[float]) -> LoadFigures:
    return LoadFigures(
        point.rate,
        point.speedup,
        None if point.speculative is None else LatencyFigures(*_latencies(point.speculative, quantiles)),
        None if point.plain is None else LatencyFigures(*_latencies(point.plain, quantiles)),
    )


def _latencies(latency: Latency, quantiles: Sequence[float]) -> tuple[float, dict[str, float]]:
    """The mean, and the quantiles by name."""
    return latency.mean, {quantile_name(quantile): latency.quantile(quantile) for quantile in quantiles}

"""A variant of the draft at the load of `gate.load`. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.gate import GateConfig
from pipeline.latency.costs.step_costs import StepCosts
from pipeline.latency.load.serving import LatencyAtLoad, latency_at_load, point_at_load
from pipeline.latency.load.workload import Workload


@dataclass(frozen=True, kw_only=True)
class StatedLoad:
    """The load, and what a decoding step costs with the variant."""

    step_costs: StepCosts
    requests_per_second: float
    max_batch: int
    gamma: int  # the draft length
    quantiles: Sequence[float]  # of the latency

    @classmethod
    def of(cls, policy: GateConfig, step_costs: StepCosts | None, gamma: int) -> "StatedLoad | None":
        """None where `gate.load` states none, and without step costs."""
        load = policy.load
        if load is None or step_costs is None:
            return None
        return cls(
            step_costs=step_costs,
            requests_per_second=load.requests_per_second,
            max_batch=load.max_batch,
            gamma=gamma,
            quantiles=policy.quantiles,
        )


def mean_seconds(load: StatedLoad, workload: Workload) -> float | None:
    """Predicted mean request latency; None where the load exceeds capacity."""
    point = point_at_load(
        covered(load, workload), load.step_costs, load.requests_per_second, load.max_batch, load.gamma
    ).speculative
    return None if point is None else point.mean


def latency(load: StatedLoad, workload: Workload, confidence: float) -> LatencyAtLoad:
    """Predicted latency and speedup, with intervals over prompts."""
    return latency_at_load(
        covered(load, workload),
        load.step_costs,
        load.requests_per_second,
        load.max_batch,
        load.gamma,
        confidence=confidence,
        quantiles=load.quantiles,
    )


def covered(load: StatedLoad, workload: Workload) -> Workload:
    """The workload at the draft lengths whose costs are known."""
    return workload.up_to(load.step_costs.max_gamma)

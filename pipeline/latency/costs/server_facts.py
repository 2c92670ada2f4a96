"""What measurements of a server state beside the times of its steps. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.latency.costs.cells import Cell


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Facts of step costs. The defaults are those of forward times, for which no requests were measured."""

    plain: bool = True  # whether plain decoding was measured, the baseline of a speedup
    measured_requests: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # fewest and most, by draft length
    tokens_by_gamma: Mapping[int, float] = field(default_factory=dict)  # measured tokens per step; empty if unknown
    tokens_error: float = 0.0  # mean absolute relative error of these on left-out measurements
    acceptance_known: bool = True  # False: `tokens_by_gamma` are no measurements; only times per token are
    output_tokens: float | None = None  # mean output length of the measured requests
    first_token: float = 0.0  # TTFT of a request that is alone, in seconds; 0 if unknown
    max_throughput: tuple[float, float] | None = None  # measured tokens per second, of plain decoding and of all
    cells: tuple[Cell, ...] = ()  # what was measured at each load and draft length

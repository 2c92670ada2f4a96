"""How a throughput or a time per token changes with the load: whether it can be that of all requests, or of each. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.row import MAX_TPOT, MIN_TPOT, MeasuredRow

_TIMES = {"step", "itl", "tpot", "latency", "each_throughput"}
_SEVERAL = 4.0  # ratio of two concurrencies between which the throughput of a server rises
_FALLS = 1.15  # ratio by which a time per token may fall from one load to the next: noise
_RISES = 1.2  # throughput at the heaviest / at the lightest load from which it is that of all requests


def check_throughput(rows: Sequence[MeasuredRow], path: Path) -> None:
    """UsageError for a throughput from which steps would be computed, and which is that of each request."""
    alone = [row for row in rows if row.values.get("throughput") and not row.values.keys() & _TIMES]
    if not alone:
        return
    column = printable(alone[0].columns.get("throughput", "throughput"))
    if is_of_each(
        [row.values.get("gamma", 0.0) for row in alone],
        [row.values.get("running", row.values.get("concurrency", 0.0)) for row in alone],
        [row.values["throughput"] for row in alone],
    ):
        raise UsageError(
            f"{path}: '{column}' is lower at the highest concurrency than at the lowest, at each draft length, so it is the "
            f"throughput of each request; give --column each_throughput={column}"
        )


def is_of_each(gammas: Sequence[float], loads: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether a throughput is lower at the highest of several loads than at the lowest, at each draft length."""
    groups = by_draft_length(gammas, loads, rates)
    ends = [(group[0], group[-1]) for group in groups if 0 < _SEVERAL * group[0][0] <= group[-1][0]]
    return bool(ends) and all(high[1] < low[1] for low, high in ends)


def is_of_all(gammas: Sequence[float], loads: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether a throughput rises with the load, and the time per token that follows from it is possible."""
    each = [load / rate for load, rate in zip(loads, rates, strict=True)]
    return rises(gammas, loads, rates) and grows(gammas, loads, each)


def rises(gammas: Sequence[float], loads: Sequence[float], values: Sequence[float]) -> bool:
    """Whether it is larger at the highest load than at the lowest, at each draft length, as that of all requests is."""
    groups = [group for group in by_draft_length(gammas, loads, values) if group[-1][0] > group[0][0]]
    return bool(groups) and all(group[-1][1] >= _RISES * group[0][1] for group in groups)


def grows(gammas: Sequence[float], loads: Sequence[float], seconds: Sequence[float]) -> bool:
    """Whether it is a possible time per token that does not fall with the load."""
    groups = by_draft_length(gammas, loads, seconds)
    steady = all(later[1] * _FALLS >= earlier[1] for group in groups for earlier, later in pairwise(group))
    return steady and all(MIN_TPOT <= value <= MAX_TPOT for value in seconds)


def by_draft_length(
    gammas: Sequence[float], loads: Sequence[float], values: Sequence[float]
) -> list[list[tuple[float, float]]]:
    """Load and value in order of load, by draft length."""
    by_gamma: dict[float, list[tuple[float, float]]] = {}
    for gamma, load, value in zip(gammas, loads, values, strict=True):
        by_gamma.setdefault(gamma, []).append((load, value))
    return [sorted(group) for group in by_gamma.values()]

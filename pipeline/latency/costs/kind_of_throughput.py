"""Whether a throughput can be the only time of a table: it may be of each request, or in requests per second. Pure."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.columns import UNCLEAR
from pipeline.latency.costs.row import Row

_TIMES = {"step", "itl", "tpot", "latency", "each_throughput"}
_SEVERAL = 4.0  # ratio of two concurrencies between which the throughput of a server rises


def check_throughput(rows: Sequence[Row], path: Path, given: Mapping[str, str]) -> None:
    """UsageError for a throughput from which steps would be computed, and which can be something else. `given`: columns that the
    user named; these are believed to be in tokens per second."""
    alone = [row for row in rows if row.values.get("throughput") and not row.values.keys() & _TIMES]
    if not alone:
        return
    column = printable(alone[0].columns.get("throughput", "throughput"))
    if column in UNCLEAR and "throughput" not in given:
        raise UsageError(
            f"{path}: '{column}' can be in tokens or in requests per second, and no other column tells; give --column "
            f"throughput={column} if it is in tokens per second of all requests"
        )
    if _of_each(alone):
        raise UsageError(
            f"{path}: '{column}' is lower at the highest concurrency than at the lowest, at each draft length, so it is the "
            f"throughput of each request; give --column each_throughput={column}"
        )


def _of_each(rows: Sequence[Row]) -> bool:
    """Whether the throughput falls from the lightest to the heaviest load, at each draft length with such loads."""

    def gamma(row: Row) -> float:
        return row.values.get("gamma", 0.0)

    def requests(row: Row) -> float:
        return row.values.get("running", row.values.get("concurrency", 0.0))

    falls = []
    for _, group in groupby(sorted(rows, key=gamma), key=gamma):
        of_gamma = sorted(group, key=requests)
        low, high = of_gamma[0], of_gamma[-1]
        if 0 < _SEVERAL * requests(low) <= requests(high):
            falls.append(high.values["throughput"] < low.values["throughput"])
    return bool(falls) and all(falls)

"""Requests of a test that arrive at a rate, or all at once: how many were in the batch, and whether the server kept up. Pure.

By Little's law the mean number of requests that decode is those completed per second times the time for which each decodes:
the area under their number, over the duration. This holds for any arrivals, in overload too, where rate times latency does not:
600 of 100 requests were in the batch of such a test.
"""

import math
from collections.abc import Mapping

from pipeline.errors import UsageError
from pipeline.latency.costs.columns import is_median
from pipeline.latency.costs.row import MeasuredRow

BURST = (
    "the request rate is unlimited and no concurrency is stated, so all requests came at once; the batch is the mean of those "
    "that decoded"
)
_KEPT_UP = 0.95  # completed / offered load from which the server kept up
_CERTAIN = 2.0  # standard deviations by which the end of random arrivals may be off


def with_kind_of_load(values: Mapping[str, float]) -> dict[str, float]:
    """The quantities of a row where a concurrency is the number of open requests, `limit` is the most that may be open where
    requests arrive at a rate, and an unlimited rate is one that has neither: a burst."""
    quantities = dict(values)
    if quantities.get("rate") == math.inf and quantities.keys() & {"concurrency", "running"}:
        del quantities["rate"]
    if "rate" in quantities and "concurrency" in quantities:
        quantities["limit"] = quantities.pop("concurrency")
    return quantities


def left_at_end(values: Mapping[str, float], where: str) -> list[str]:
    """A sentence if more requests were left when arrivals ended than chance explains. UsageError where TTFT is unknown besides,
    since the latency then is no evidence on a step. Random arrivals end late or early: 100 by a tenth of their time."""
    asked, served = values.get("rate", math.inf), values.get("served_rate", math.inf)
    spread = _CERTAIN / math.sqrt(values["arrivals"]) if values.get("arrivals") else 0.0
    if asked == math.inf or served >= asked * (_KEPT_UP - spread):
        return []
    if "ttft" in values and values.keys() & {"tpot", "itl", "step"}:
        return [
            "many requests were left when arrivals ended: offered load exceeds capacity, or the test was short. Step times and "
            "mean batch hold, the latency of such a test does not"
        ]
    raise UsageError(
        f"{where}: completed {served:.3g} of {asked:.3g} requests/s: offered load exceeds capacity, so latency depends on "
        "the length of the test; remove this row, or add columns of TTFT and of the time per token"
    )


def mean_batch(row: MeasuredRow, token_seconds: float) -> float | None:
    """Mean number of requests in the batch that a request finds, with itself; None if it is unknown. An arrival at a steady rate
    finds the mean number of others (Poisson arrivals); those of a burst are all there. Never above the requests of the test,
    their limit, or the most that were open."""
    values = row.values
    rate, decoding = values.get("rate"), _decoding_seconds(row, token_seconds)
    served = values.get("served_rate", rate)
    if served is None or served == math.inf or decoding is None:
        return None
    others = served * decoding
    return min(
        max(1.0, others if rate == math.inf else 1 + others),
        *(values.get(name, math.inf) for name in ("most", "limit")),
    )


def _decoding_seconds(row: MeasuredRow, token_seconds: float) -> float | None:
    """Mean time from the first token to the last. A median time per token is no evidence on it."""
    values = row.values
    if "latency" in row.columns:
        return max(0.0, values["latency"] - values.get("ttft", 0.0))
    if "tokens" not in values or (is_median(row.columns.get("tpot", "")) and "itl" not in values):
        return None
    return token_seconds * max(0.0, values["tokens"] - 1)

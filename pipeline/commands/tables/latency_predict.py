"""What `understudy latency predict` prints: latency by load, with speculation and without."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.tables.console import Report
from pipeline.config.quantiles import DEFAULT_QUANTILE, quantile_name
from pipeline.latency.load.prediction import Prediction, SimulatedLatency
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.schedule import batch_ranges

_UNSTABLE, _EXTRAPOLATED = "unstable", "*"
_WITHIN = 0.05  # of a simulated figure
_ABOVE = 1.02  # capacity / largest measured throughput from which it is said (a prefill gives one of the tokens)
_PARTS = ("queue", "admission", "prefill", "service", "batch", "busy")  # of a latency, in JSON


def _columns(quantiles: Sequence[float], simulated: bool, drafts: bool = True) -> tuple[str, ...]:
    names = ["mean", *map(quantile_name, quantiles)]
    return (
        "requests/s",
        "tokens/s",
        *(f"plain {name} s" for name in names),
        "plain batch",
        *(f"spec. {name} s" for name in names if drafts),
        *(["spec. batch"] if drafts else []),
        *(f"simulated {name} s" for name in names if simulated),
        *(["speedup"] if drafts else []),
        "step times off by",
    )


COLUMNS = _columns([DEFAULT_QUANTILE], simulated=True)


def print_prediction(
    found: Prediction,
    quantiles: Sequence[float],
    lengths_N: NDArray[np.int64],
    tokens: float,
    notes: Sequence[str],
) -> None:
    """To stdout. `tokens`: mean output length."""
    out = Report()
    simulated = any(point.simulated for point in found.points)
    rows = []
    for point in found.points:
        speedup = "-" if point.speedup is None else f"{point.speedup:.2f}"
        rows.append(
            [
                f"{point.rate:.4g}",
                f"{point.rate * tokens:,.0f}" if point.plain or point.speculative else "-",
                *_cells(point.plain, quantiles),
                *(_cells(point.speculative, quantiles) if found.drafts else ()),
                *(_simulated(point.simulated, quantiles) if simulated else ()),
                *([speedup] if found.drafts else []),
                point.accuracy.short + (_EXTRAPOLATED if point.extrapolated else ""),
            ]
        )
    out.table(_columns(quantiles, simulated, found.drafts), rows)
    if found.drafts:
        out.text(f"draft length: {_lengths(lengths_N)} ({found.inside.said})")
    else:
        out.text("plain decoding only: the costs have no measurement with a draft")
    speculation = f", {found.speculative_limit:.4g} with speculation" if found.drafts else ""
    out.text(
        f"capacity: {found.plain_limit:.4g} requests/s with plain decoding{speculation} ({found.error_of_capacity})"
    )
    if any(point.extrapolated for point in found.points):
        out.text(
            f"{_EXTRAPOLATED} a mean batch is above the largest that was measured with its draft length: times there are "
            "extrapolated; the error is that of one load beyond, and further out it is larger"
        )
    if any(point.accuracy.edge for point in found.points):
        out.text("(edge): at or beyond the lightest or heaviest measured load, and the error there")
    if simulated:
        out.text(_said_of_simulation(found, quantiles))
    if any(point.plain is None or point.speculative is None for point in found.points):
        out.text(f"{_UNSTABLE}: the offered load exceeds the capacity, so the queue and the latency grow without bound")
    speedup_is = "Speedup: mean latency with plain decoding / mean latency with speculation. " if found.drafts else ""
    out.text(f"{speedup_is}Batch: mean number of requests in progress; it is below 1 if the server is often idle.")
    for note in notes:
        out.text(note)


def _said_of_simulation(found: Prediction, quantiles: Sequence[float]) -> str:
    """What +- means, and how long a simulation an error of 5% needs, at the load that needs most."""
    needed: dict[str, int] = {}
    for point in found.points:
        for name, quantile in (("the mean", None), *((quantile_name(one), one) for one in quantiles)):
            if point.simulated and (count := point.simulated.requests_for(_WITHIN, quantile)):
                needed[name] = max(needed.get(name, 0), count)
    if not needed:
        return "too few requests were simulated for a standard error; simulate 1,000 or more"
    said = ", ".join(f"{count:,} for {name}" for name, count in needed.items())
    return (
        f"simulated: +- the standard error. To be within {_WITHIN:.0%} in 95 of 100 simulations, simulate (at the load "
        f"that needs most): {said}"
    )


def above_measured(found: Prediction, tokens: float) -> list[str]:
    """A capacity that nobody measured. `tokens`: mean output length."""
    return [
        f"note: the capacity with {what}, {limit:.4g} requests/s ({limit * tokens:,.0f} tokens/s), is above the largest "
        f"throughput of the measurements, {measured:.4g} requests/s ({measured * tokens:,.0f} tokens/s); no measurement shows it"
        for what, limit, measured in (
            ("plain decoding", found.plain_limit, found.plain_measured),
            ("speculation", found.speculative_limit, found.measured),
        )
        if measured is not None and limit > _ABOVE * measured and (found.drafts or what == "plain decoding")
    ]


def near_capacity(found: Prediction) -> list[str]:
    """Loads that exceed the capacity if the step times are as much too low as their error."""
    said = list[str]()
    for what, limit, accuracy, stable in (
        (
            "plain decoding",
            found.plain_limit,
            found.plain_accuracy,
            [point.rate for point in found.points if point.plain],
        ),
        (
            "speculation",
            found.speculative_limit,
            found.accuracy,
            [point.rate for point in found.points if point.speculative],
        ),
    ):
        near = [rate for rate in stable if rate * (1 + (accuracy.left_out or 0.0)) * (1 + accuracy.tokens) >= limit]
        if near and (found.drafts or what == "plain decoding"):
            said.append(
                f"note: {what} may be unstable from {near[0]:.4g} requests/s on: the capacity, {limit:.4g}, is within the error "
                f"({accuracy.said})"
            )
    return said


def _cells(found: Latency | None, quantiles: Sequence[float]) -> list[str]:
    if found is None:
        return [_UNSTABLE, *("-" for _ in quantiles), "-"]
    return [*_seconds(found, quantiles), f"{found.batch:.1f}"]


def _simulated(found: SimulatedLatency | None, quantiles: Sequence[float]) -> list[str]:
    if found is None:
        return ["-", *("-" for _ in quantiles)]
    errors = map(found.standard_error, (None, *quantiles))
    return [
        seconds + ("" if error is None else f" +-{error:.2g}")
        for seconds, error in zip(_seconds(found, quantiles), errors, strict=True)
    ]


def _seconds(found: Latency | SimulatedLatency, quantiles: Sequence[float]) -> list[str]:
    return [f"{one:.3g}" for one in (found.mean, *map(found.quantile, quantiles))]


def prediction_json(found: Prediction, quantiles: Sequence[float]) -> dict[str, Any]:
    """All figures; a quantile of the latency is named as in `p95`. Null where the offered load exceeds the capacity."""

    def figures(one: Latency | SimulatedLatency) -> dict[str, float]:
        return {"mean": one.mean, **{quantile_name(quantile): one.quantile(quantile) for quantile in quantiles}}

    def by_name(one: Callable[[float | None], float | None]) -> dict[str, float | None]:
        return {"mean": one(None), **{quantile_name(quantile): one(quantile) for quantile in quantiles}}

    def parts(one: Latency) -> dict[str, float]:
        return {**figures(one), **{name: getattr(one, name) for name in _PARTS}}

    return {
        "points": [
            {
                "rate": point.rate,
                "accuracy": point.accuracy.json(),
                "extrapolated": point.extrapolated,
                "plain": point.plain and parts(point.plain),
                "speculative": point.speculative and parts(point.speculative),
                "simulated": point.simulated
                and {
                    **figures(point.simulated),
                    "requests": len(point.simulated.seconds_R),
                    "standard_errors": by_name(point.simulated.standard_error),
                    "requests_for_5_percent": by_name(partial(point.simulated.requests_for, _WITHIN)),
                },
            }
            for point in found.points
        ],
        "plain_limit": found.plain_limit,
        "speculative_limit": found.speculative_limit,
        "plain_measured": found.plain_measured,
        "measured": found.measured,
        "extrapolated": found.extrapolated,
        "accuracy": found.plain_accuracy.or_worse(found.accuracy).json(),
    }


def _lengths(lengths_N: NDArray[np.int64]) -> str:
    return ", ".join(
        f"{gamma} at batch size {first}" if first == last else f"{gamma} at batch sizes {first} to {last}"
        for first, last, gamma in batch_ranges(lengths_N)
    )

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
    prediction: Prediction,
    quantiles: Sequence[float],
    lengths_N: NDArray[np.int64],
    tokens: float,
    notes: Sequence[str],
) -> None:
    """Print the prediction to stdout. `tokens`: mean output length."""
    out = Report()
    simulated = any(point.simulated for point in prediction.points)
    rows = []
    for point in prediction.points:
        speedup = "-" if point.speedup is None else f"{point.speedup:.2f}"
        rows.append(
            [
                f"{point.rate:.4g}",
                f"{point.rate * tokens:,.0f}" if point.plain or point.speculative else "-",
                *_cells(point.plain, quantiles),
                *(_cells(point.speculative, quantiles) if prediction.drafts else ()),
                *(_simulated(point.simulated, quantiles) if simulated else ()),
                *([speedup] if prediction.drafts else []),
                point.accuracy.short + (_EXTRAPOLATED if point.extrapolated else ""),
            ]
        )
    out.table(_columns(quantiles, simulated, prediction.drafts), rows)
    if prediction.drafts:
        out.text(f"draft length: {_lengths(lengths_N)} ({prediction.inside.said})")
    else:
        out.text("plain decoding only: the costs have no measurement with a draft")
    speculation = f", {prediction.speculative_limit:.4g} with speculation" if prediction.drafts else ""
    out.text(
        f"capacity: {prediction.plain_limit:.4g} requests/s with plain decoding{speculation} ({prediction.error_of_capacity})"
    )
    if any(point.extrapolated for point in prediction.points):
        out.text(
            f"{_EXTRAPOLATED} a mean batch is above the largest that was measured with its draft length: times there are "
            "extrapolated; the error is that of one load beyond, and further out it is larger"
        )
    if any(point.accuracy.edge for point in prediction.points):
        out.text("(edge): at or beyond the lightest or heaviest measured load, and the error there")
    if simulated:
        out.text(_said_of_simulation(prediction, quantiles))
    if any(point.plain is None or point.speculative is None for point in prediction.points):
        out.text(f"{_UNSTABLE}: the offered load exceeds the capacity, so the queue and the latency grow without bound")
    speedup_is = (
        "Speedup: mean latency with plain decoding / mean latency with speculation. " if prediction.drafts else ""
    )
    out.text(f"{speedup_is}Batch: mean number of requests in progress; it is below 1 if the server is often idle.")
    for note in notes:
        out.text(note)


def _said_of_simulation(prediction: Prediction, quantiles: Sequence[float]) -> str:
    """What +- means, and how long a simulation an error of 5% needs, at the load that needs most."""
    needed: dict[str, int] = {}
    for point in prediction.points:
        for name, quantile in (("the mean", None), *((quantile_name(share), share) for share in quantiles)):
            if point.simulated and (count := point.simulated.requests_for(_WITHIN, quantile)):
                needed[name] = max(needed.get(name, 0), count)
    if not needed:
        return "too few requests were simulated for a standard error; simulate 1,000 or more"
    said = ", ".join(f"{count:,} for {name}" for name, count in needed.items())
    return (
        f"simulated: +- the standard error. To be within {_WITHIN:.0%} in 95 of 100 simulations, simulate (at the load "
        f"that needs most): {said}"
    )


def above_measured(prediction: Prediction, tokens: float) -> list[str]:
    """A capacity that nobody measured. `tokens`: mean output length."""
    return [
        f"note: the capacity with {what}, {limit:.4g} requests/s ({limit * tokens:,.0f} tokens/s), is above the largest "
        f"throughput of the measurements, {measured:.4g} requests/s ({measured * tokens:,.0f} tokens/s); no measurement shows it"
        for what, limit, measured in (
            ("plain decoding", prediction.plain_limit, prediction.plain_measured),
            ("speculation", prediction.speculative_limit, prediction.measured),
        )
        if measured is not None and limit > _ABOVE * measured and (prediction.drafts or what == "plain decoding")
    ]


def near_capacity(prediction: Prediction) -> list[str]:
    """Loads that exceed the capacity if the step times are as much too low as their error."""
    said = list[str]()
    for what, limit, accuracy, stable in (
        (
            "plain decoding",
            prediction.plain_limit,
            prediction.plain_accuracy,
            [point.rate for point in prediction.points if point.plain],
        ),
        (
            "speculation",
            prediction.speculative_limit,
            prediction.accuracy,
            [point.rate for point in prediction.points if point.speculative],
        ),
    ):
        near = [rate for rate in stable if rate * (1 + (accuracy.left_out or 0.0)) * (1 + accuracy.tokens) >= limit]
        if near and (prediction.drafts or what == "plain decoding"):
            said.append(
                f"note: {what} may be unstable from {near[0]:.4g} requests/s on: the capacity, {limit:.4g}, is within the error "
                f"({accuracy.said})"
            )
    return said


def _cells(latency: Latency | None, quantiles: Sequence[float]) -> list[str]:
    if latency is None:
        return [_UNSTABLE, *("-" for _ in quantiles), "-"]
    return [*_seconds(latency, quantiles), f"{latency.batch:.1f}"]


def _simulated(latency: SimulatedLatency | None, quantiles: Sequence[float]) -> list[str]:
    if latency is None:
        return ["-", *("-" for _ in quantiles)]
    errors = map(latency.standard_error, (None, *quantiles))
    return [
        seconds + ("" if error is None else f" +-{error:.2g}")
        for seconds, error in zip(_seconds(latency, quantiles), errors, strict=True)
    ]


def _seconds(latency: Latency | SimulatedLatency, quantiles: Sequence[float]) -> list[str]:
    return [f"{figure:.3g}" for figure in (latency.mean, *map(latency.quantile, quantiles))]


def prediction_json(prediction: Prediction, quantiles: Sequence[float]) -> dict[str, Any]:
    """All figures; a quantile of the latency is named as in `p95`. Null where the offered load exceeds the capacity."""

    def figures(latency: Latency | SimulatedLatency) -> dict[str, float]:
        return {"mean": latency.mean, **{quantile_name(quantile): latency.quantile(quantile) for quantile in quantiles}}

    def by_name(figure_of: Callable[[float | None], float | None]) -> dict[str, float | None]:
        return {"mean": figure_of(None), **{quantile_name(quantile): figure_of(quantile) for quantile in quantiles}}

    def parts(latency: Latency) -> dict[str, float]:
        return {**figures(latency), **{name: getattr(latency, name) for name in _PARTS}}

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
            for point in prediction.points
        ],
        "plain_limit": prediction.plain_limit,
        "speculative_limit": prediction.speculative_limit,
        "plain_measured": prediction.plain_measured,
        "measured": prediction.measured,
        "extrapolated": prediction.extrapolated,
        "accuracy": prediction.plain_accuracy.or_worse(prediction.accuracy).json(),
    }


def _lengths(lengths_N: NDArray[np.int64]) -> str:
    return ", ".join(
        f"{gamma} at batch size {first}" if first == last else f"{gamma} at batch sizes {first} to {last}"
        for first, last, gamma in batch_ranges(lengths_N)
    )

"""What `understudy latency predict` prints and plots: latency by load, with speculation and without."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.latency.load.prediction import LoadPoint, Prediction
from pipeline.latency.load.queueing import Latency
from pipeline.latency.load.schedule import batch_ranges
from pipeline.report.console import Report

_SIMULATED = ("simulated mean s", "simulated p95 s")
COLUMNS = (
    "requests/s",
    "tokens/s",
    "plain mean s",
    "plain p95 s",
    "plain batch",
    "spec. mean s",
    "spec. p95 s",
    "spec. batch",
    *_SIMULATED,
    "speedup",
)
_UNSTABLE = "unstable"


def print_prediction(found: Prediction, lengths_N: NDArray[np.int64], tokens: float, notes: Sequence[str]) -> None:
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
                *_cells(point.plain),
                *_cells(point.speculative),
                *(_simulated(point) if simulated else ()),
                speedup,
            ]
        )
    out.table([column for column in COLUMNS if simulated or column not in _SIMULATED], rows)
    out.text(f"draft length: {_lengths(lengths_N)}")
    out.text(
        f"capacity: {found.plain_limit:.4g} requests/s with plain decoding, {found.speculative_limit:.4g} with speculation"
    )
    if any(point.plain is None or point.speculative is None for point in found.points):
        out.text(f"{_UNSTABLE}: the offered load exceeds the capacity, so the queue and the latency grow without bound")
    out.text(
        "Speedup: mean latency with plain decoding / mean latency with speculation. Batch: mean number of requests in "
        "progress; it is below 1 if the server is often idle."
    )
    for note in notes:
        out.text(note)


def _cells(found: Latency | None) -> tuple[str, str, str]:
    return (_UNSTABLE, "-", "-") if found is None else (f"{found.mean:.3g}", f"{found.p95:.3g}", f"{found.batch:.1f}")


def _simulated(point: LoadPoint) -> tuple[str, str]:
    simulation = point.simulated
    return ("-", "-") if simulation is None else (f"{simulation.mean:.3g}", f"{simulation.p95:.3g}")


def _lengths(lengths_N: NDArray[np.int64]) -> str:
    return ", ".join(
        f"{gamma} at batch size {first}" if first == last else f"{gamma} at batch sizes {first} to {last}"
        for first, last, gamma in batch_ranges(lengths_N)
    )


def plot_prediction(found: Prediction, path: Path) -> None:
    """Mean (solid) and p95 (dashed) latency by load; dotted vertical lines show the capacity."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, colour, limit in (
        ("plain", "tab:gray", found.plain_limit),
        ("speculative", "tab:blue", found.speculative_limit),
    ):
        stable = [(point.rate, one) for point in found.points if (one := getattr(point, name)) is not None]
        rates = [rate for rate, _ in stable]
        label = "plain decoding" if name == "plain" else "speculative decoding"
        axes.plot(rates, [one.mean for _, one in stable], "o-", color=colour, label=f"{label}: mean")
        axes.plot(rates, [one.p95 for _, one in stable], "s--", color=colour, label=f"{label}: p95", alpha=0.6)
        axes.axvline(limit, color=colour, linestyle=":", label=f"{label}: capacity {limit:.3g} requests/s")
    simulations = [(point.rate, point.simulated) for point in found.points if point.simulated]
    if simulations:
        axes.plot(
            [rate for rate, _ in simulations], [one.mean for _, one in simulations], "kx", label="simulated: mean"
        )
        axes.plot(
            [rate for rate, _ in simulations],
            [one.p95 for _, one in simulations],
            "k+",
            label="simulated: p95",
        )
    axes.set(xlabel="offered load (requests/s)", ylabel="request latency (s)", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""Plots of latency by load and of speedup by draft length: of `understudy latency`, and of the chosen variant of a decision."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np

from pipeline.config.quantiles import quantile_name
from pipeline.escaping.markup import plot_text
from pipeline.judgement.at_load import StatedLoad, covered
from pipeline.latency.load.prediction import Prediction, chosen_lengths, draft_option, predict
from pipeline.latency.load.schedule import Schedule, make_schedule, speedups
from pipeline.latency.load.workload import Workload

_SHOWN = (1, 4, 16, 64, 256)  # batch sizes in the plot of a schedule


def plot_at_load(load: StatedLoad, workload: Workload, variant: str, out: Path) -> None:
    """Write `latency.png` and `draft_lengths.png` into the directory `out`, if the costs of plain decoding are known."""
    costs, cap, workload = load.step_costs, load.max_batch, covered(load, workload)
    if not costs.plain:
        return
    prediction = predict(workload, costs, chosen_lengths(workload, costs, cap, load.gamma), [])
    plot_prediction(prediction, load.quantiles, out / "latency.png")
    plot_schedule(make_schedule([draft_option(variant, workload, costs, cap)]), out / "draft_lengths.png")


def plot_prediction(prediction: Prediction, quantiles: Sequence[float], path: Path) -> None:
    """Mean (solid) and quantiles (dashed) of the latency by load; dotted vertical lines show the capacity."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, colour, limit in (
        ("plain", "tab:gray", prediction.plain_limit),
        ("speculative", "tab:blue", prediction.speculative_limit),
    ):
        stable = [(point.rate, latency) for point in prediction.points if (latency := getattr(point, name)) is not None]
        rates = [rate for rate, _ in stable]
        label = "plain decoding" if name == "plain" else "speculative decoding"
        axes.plot(rates, [latency.mean for _, latency in stable], "o-", color=colour, label=f"{label}: mean")
        for quantile, marker in zip(quantiles, cycle("s^Dv"), strict=False):
            seconds, shown = (
                [latency.quantile(quantile) for _, latency in stable],
                f"{label}: {quantile_name(quantile)}",
            )
            axes.plot(rates, seconds, f"{marker}--", color=colour, label=shown, alpha=0.6)
        axes.axvline(
            limit,
            color=colour,
            linestyle=":",
            label=f"{label}: capacity {limit:.3g} requests/s ({prediction.error_of_capacity})",
        )
    simulations = [(point.rate, point.simulated) for point in prediction.points if point.simulated]
    if simulations:
        axes.plot(
            [rate for rate, _ in simulations],
            [latency.mean for _, latency in simulations],
            "kx",
            label="simulated: mean",
        )
        for quantile, marker in zip(quantiles, cycle("+123"), strict=False):
            axes.plot(
                [rate for rate, _ in simulations],
                [latency.quantile(quantile) for _, latency in simulations],
                f"k{marker}",
                label=f"simulated: {quantile_name(quantile)}",
            )
    axes.set(xlabel="offered load (requests/s)", ylabel="request latency (s)", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_schedule(schedule: Schedule, path: Path) -> None:
    """Left: speedup by draft length at several batch sizes (first draft). Right: best speedup by batch size (all drafts)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_length, by_load) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    first, cap = schedule.drafts[0], len(schedule.lengths_N)
    speedup_GN = speedups(first.rounds_G, first.step_GN)
    for count in [number for number in _SHOWN if number < cap] + [cap]:
        by_length.plot(speedup_GN[:, count - 1], "o-", label=f"batch size {count}")
    by_length.xaxis.get_major_locator().set_params(integer=True)
    by_length.set(xlabel="draft length", ylabel="speedup over plain decoding", title=plot_text(first.name))
    for draft in schedule.drafts:
        best_N = speedups(draft.rounds_G, draft.step_GN).max(0)
        by_load.plot(
            np.arange(1, cap + 1),
            best_N,
            "-",
            label=plot_text(f"{draft.name}, best draft length ({draft.accuracy.said})"),
        )
    by_load.set(xlabel="batch size", ylabel="speedup over plain decoding", xscale="log")
    by_load.xaxis.set_major_formatter("{x:g}")
    for axes in (by_length, by_load):
        axes.axhline(1.0, color="black", linestyle=":", label="break-even")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)

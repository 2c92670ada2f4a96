"""Plots for people who review a decision: latency by load, and speedup by draft length, of the chosen variant."""

from pathlib import Path

from pipeline.judgement.at_load import StatedLoad, covered
from pipeline.latency.load.prediction import chosen_lengths, draft_option, predict
from pipeline.latency.load.schedule import make_schedule
from pipeline.latency.load.workload import Workload
from pipeline.report.latency_predict import plot_prediction
from pipeline.report.latency_schedule import plot_schedule


def plot_at_load(load: StatedLoad, workload: Workload, variant: str, out: Path) -> None:
    """Write `latency.png` and `draft_lengths.png` into the directory `out`, if the costs of plain decoding are known."""
    costs, cap, workload = load.step_costs, load.max_batch, covered(load, workload)
    if not costs.plain:
        return
    found = predict(workload, costs, chosen_lengths(workload, costs, cap, load.gamma), [])
    plot_prediction(found, load.quantiles, out / "latency.png")
    plot_schedule(make_schedule([draft_option(variant, workload, costs, cap)]), out / "draft_lengths.png")

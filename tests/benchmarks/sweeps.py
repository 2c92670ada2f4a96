"""Measured sweeps, and how well costs that were fitted to a part of one predict the rest. Pure, but for reading the sweeps.

The peer is a non-negative least squares fit of TPOT to [1/E, k/E, B/E, kB/E] with E tokens per step, k the draft length and B
requests, weighted to relative errors as ours is.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.costs.prefills import prefills_of_others
from pipeline.latency.load.output_lengths import parse_output_lengths
from pipeline.latency.load.prediction import predict
from pipeline.latency.load.schedule import batch_ranges, draft_lengths, request_seconds
from pipeline.latency.load.workload import measured_acceptance_workload
from tests.benchmarks.figures import RESULTS
from tests.benchmarks.vllm_sweep import CAP
from tests.benchmarks.vllm_sweep import RESULTS as VLLM

Floats = NDArray[np.float64]

MOST_REQUESTS = 256  # of a schedule


Cell = tuple[int, int]  # nominal concurrency, draft length
Turn = dict[Cell, Measurement]


@dataclass(frozen=True)
class Sweep:
    """Every measurement of every turn, by cell."""

    name: str
    turns: list[Turn]

    @property
    def points(self) -> Turn:
        """One for each cell, in order: means over turns."""
        return {cell: _mean([turn[cell] for turn in self.turns]) for cell in sorted(self.turns[0])}

    def known(self, is_known: Callable[[Cell], bool]) -> list[Measurement]:
        """The measurements of some cells in all turns."""
        return [one for turn in self.turns for cell, one in turn.items() if is_known(cell)]

    @property
    def all(self) -> list[Measurement]:
        return self.known(lambda _: True)


def _mean(same: Sequence[Measurement]) -> Measurement:
    names = ("requests", "step_seconds", "tokens_per_step")
    means: dict[str, Any] = {name: float(np.mean([getattr(one, name) for one in same])) for name in names}
    return replace(same[0], **means)


def our_sweep() -> Sweep:
    """Of our decoder, as `latency_sweep` measured it."""
    figure = json.loads((RESULTS / "latency_sweep.json").read_text())["figure"]
    return Sweep(
        "our decoder",
        [
            {
                (row["requests"], row["gamma"]): Measurement(
                    where="latency_sweep.json",
                    requests=row["requests"],
                    gamma=row["gamma"],
                    tokens_per_step=row["length"],
                    step_seconds=row["step"],
                )
                for row in figure["rows"]
            }
        ],
    )


def vllm_sweep() -> Sweep:
    """Of vLLM's CPU build, as `vllm_sweep` measured it: the files as its load generator wrote them."""
    return Sweep("vLLM's CPU build", [_turn(path) for path in sorted(VLLM.glob("turn-*.jsonl"))])


def _turn(path: Path) -> Turn:
    results = map(json.loads, path.read_text().splitlines())
    return {
        (result["max_concurrency"], one.gamma): one
        for result, one in zip(results, read_measurements(path).measured, strict=True)
    }


def judged(sweep: Sweep) -> dict[str, Any]:
    """All figures of a sweep."""
    points = sweep.points
    loads, gammas = (sorted({cell[axis] for cell in points}) for axis in (0, 1))

    def colour(cell: Cell) -> int:
        return (loads.index(cell[0]) + gammas.index(cell[1])) % 2

    return {
        "name": sweep.name,
        "loads": loads,
        "gammas": gammas,
        "repeats": len(sweep.turns),
        "repeat_error": repeat_error(sweep),
        "chessboards": [_split(sweep, lambda cell, side=side: colour(cell) == side) for side in (0, 1)],  # type: ignore[misc]
        "lighter": _split(sweep, lambda cell: cell[0] > loads[0]),
        "heavier": _split(sweep, lambda cell: cell[0] < loads[-1]),
        "best": {str(load): _best(points, load) for load in loads},
        "schedule": _schedule(fit_measurements(sweep.all)),
    }


def repeat_error(sweep: Sweep) -> float | None:
    """Mean relative difference of a step time in one turn from that in the next one."""
    if len(sweep.turns) < 2:
        return None
    step_TR = np.array([[turn[cell].step_seconds for cell in sweep.points] for turn in sweep.turns])
    return float(np.mean([np.abs(one_R / other_R - 1).mean() for one_R, other_R in pairwise(step_TR)]))


def predicted_tpot(fitted: FittedCosts, points: Sequence[Measurement]) -> Floats:
    """TPOT with the prefills of the other requests."""
    return np.array(
        [
            (fitted.step_seconds(one.requests, one.gamma).item() + fitted.prefill * (prefills_of_others(one) or 0.0))
            / one.tokens_per_step
            for one in points
        ]
    )


def _split(sweep: Sweep, is_known: Callable[[Cell], bool]) -> dict[str, Any]:
    """Fitted to the cells that are known, tested on the others."""
    points, known = sweep.points, sweep.known(is_known)
    asked = [one for cell, one in points.items() if not is_known(cell)]
    fitted, true_R = fit_measurements(known), tpot(asked)
    ours_R, peer_R = predicted_tpot(fitted, asked), peer_tpot(known, asked)
    every = list(points.values())
    return {
        "mape": float(np.abs(ours_R / true_R - 1).mean()),
        "peer_mape": float(np.abs(peer_R / true_R - 1).mean()),
        "r2": _r2(ours_R, true_R),
        "peer_r2": _r2(peer_R, true_R),
        "regret": _regrets(points, predicted_tpot(fitted, every)),
        "peer_regret": _regrets(points, peer_tpot(known, every)),
    }


def tpot(points: Sequence[Measurement]) -> Floats:
    """As measured."""
    return np.array([one.step_seconds / one.tokens_per_step for one in points])


def peer_tpot(known: Sequence[Measurement], asked: Sequence[Measurement]) -> Floats:
    """TPOT of other points by the line."""
    values_K, _ = nnls(_peer_columns(known) / tpot(known)[:, None], np.ones(len(known)))
    found_R: Floats = _peer_columns(asked) @ values_K
    return found_R


def _peer_columns(points: Sequence[Measurement]) -> Floats:
    return np.array(
        [np.array([1.0, one.gamma, one.requests, one.gamma * one.requests]) / one.tokens_per_step for one in points]
    )


def _r2(found_R: Floats, true_R: Floats) -> float:
    return float(1 - ((found_R - true_R) ** 2).sum() / ((true_R - true_R.mean()) ** 2).sum())


def _best(points: Turn, load: int) -> int:
    """The draft length with the least measured TPOT."""
    own = [one for cell, one in points.items() if cell[0] == load]
    return own[int(tpot(own).argmin())].gamma


def _regrets(points: Turn, predicted_R: Floats) -> list[float]:
    """By load: measured TPOT at the draft length with the least predicted TPOT / the least measured TPOT - 1."""
    true_R, load_R = tpot(list(points.values())), np.array([load for load, _ in points])
    return [
        float(true_R[own_R][predicted_R[own_R].argmin()] / true_R[own_R].min() - 1)
        for own_R in (load_R == load for load in sorted(set(load_R)))
    ]


def _schedule(fitted: FittedCosts) -> dict[str, Any]:
    """Stretches of the schedule for 1 to 256 requests, and what it loses to the finest one."""
    rounds_G = measured_acceptance_workload(fitted.tokens_by_gamma, 128, 400, fitted.max_gamma).rounds_G
    step_GN = fitted.steps(MOST_REQUESTS, 128)
    lengths_N, seconds_GN = draft_lengths(rounds_G, step_GN), request_seconds(rounds_G, step_GN)
    loss_N = seconds_GN[lengths_N, np.arange(MOST_REQUESTS)] / seconds_GN.min(0) - 1
    return {
        "stretches": [list(one) for one in batch_ranges(lengths_N)],
        "finest": len(batch_ranges(seconds_GN.argmin(0))),
        "loss": float(loss_N.max()),
    }


def rates(sweep: Sweep) -> list[dict[str, Any]]:
    """Measured and predicted latency at each request rate of `rates.jsonl`, all runs of a rate together, by costs fitted to the
    whole sweep."""
    fitted, found = fit_measurements(sweep.all), []
    tokens_W = parse_output_lengths(str(VLLM / "rates.jsonl"))
    results = [json.loads(line) for line in (VLLM / "rates.jsonl").read_text().splitlines()]
    for rate in sorted({result["request_rate"] for result in results}):
        runs = [result for result in results if result["request_rate"] == rate]
        seconds_R = np.concatenate([result["latencies"] for result in runs])
        gamma, prompt = int(runs[0]["k"]), round(runs[0]["total_input_tokens"] / runs[0]["completed"])
        workload = measured_acceptance_workload(fitted.tokens_by_gamma, prompt, tokens_W, fitted.max_gamma)
        prediction = predict(workload, fitted, np.full(CAP, gamma), [rate])
        latency = prediction.points[0].speculative
        assert latency is not None
        found.append(
            {
                "rate": rate,
                "gamma": gamma,
                "load": rate / prediction.speculative_limit,
                "requests": len(seconds_R),
                "mean": float(seconds_R.mean()),
                "predicted_mean": latency.mean,
                "p95": float(np.quantile(seconds_R, 0.95)),
                "p95_of_runs": [result["p95_e2el_ms"] / 1e3 for result in runs],
                "predicted_p95": latency.quantile(0.95),
            }
        )
    return found

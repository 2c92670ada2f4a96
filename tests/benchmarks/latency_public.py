"""How well costs that were fitted to a part of a public sweep predict the rest of it, and whether they say so: many servers.

The protocol was written before any form was fitted to these tables. A sweep is one table of one server, with at least six
different points of at least three loads. `given` are sweeps that the forms were chosen by: those at even places of the alphabet
for tuning (which forms are tried, how they are compared, how the error at the edge is estimated), those at odd places to see
whether it helped. `found` (tests/fixtures/found_sweeps) were transcribed before the first fit, and judged once, after everything
was settled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.costs.repeats import point_numbers
from pipeline.latency.load.prediction import chosen_lengths
from pipeline.latency.load.workload import measured_acceptance_workload
from tests.benchmarks.figures import write
from tests.benchmarks.sweeps import our_sweep, peer_tpot, predicted_tpot, tpot, vllm_sweep

_FOUND = Path(__file__).resolve().parents[1] / "fixtures" / "found_sweeps"
_SWEEPS = next((one for up in Path(__file__).parents if (one := up / "shared/data/measurements").is_dir()), None)
_COLUMNS: dict[str, dict[str, str]] = {  # where a table has names that nobody else uses: what `fit` offers
    "glm51": {
        "throughput": "aggregate_tps",
        "tpot": "inter_token_latency_avg_ms",
        "running": "avg_running_reqs",
        "itl": "chunk_inter_token_latency_avg_ms",
    },
    "glm5_": {"throughput": "aggregate_tok_s"},
    "kimi26v2": {"throughput": "aggregate_tok_s"},
    "qwen397": {"throughput": "aggregate_tps", "running": "avg_running_reqs"},
    "sglang_autospec": {"running": "batch_size", "throughput": "throughput_tok_s"},
    "splitwise": {"running": "batch_size", "tpot": "token_time_ms"},
    "vllm_dsd": {"running": "batch_size"},
}
_REPEATED = {"vllm_dsd_eagle1_itl": 4.0}  # a load whose rows are those of another one
_LEAST_POINTS, _LEAST_LOADS, _TOKENS, _CONTEXT = 6, 3, 256, 128
_FACTOR = 2.0  # between the printed error and the true one

Bools = NDArray[np.bool_]


def main() -> None:
    figure = {"given": _judged(_given()), "found": _judged(_read(_FOUND.glob("*.csv")))}
    write("latency_public", "python -m tests.benchmarks latency_public", figure)


def _given() -> dict[str, list[Measurement]]:
    if _SWEEPS is None:
        raise UsageError("the folder of given sweeps, shared/data/measurements, is not beside this checkout")
    files = [*(_SWEEPS / "sweeps").glob("*.csv"), *(_SWEEPS / "foreign").glob("*vllm*.csv")]
    return {"our decoder": our_sweep().all, "vLLM's CPU build": vllm_sweep().all, **_read(files)}


def _read(files: Iterator[Path] | Sequence[Path]) -> dict[str, list[Measurement]]:
    """Tables that are sweeps. One that cannot be read as it is (more tokens per step than its draft length allows) is none."""
    found = {}
    for path in sorted(files):
        columns = next((one for name, one in _COLUMNS.items() if path.stem.startswith(name)), {})
        try:
            measured = read_measurements(path, columns).measured
        except UsageError:
            continue
        measured = [one for one in measured if one.requests != _REPEATED.get(path.stem)]
        if len(_points(measured)) >= _LEAST_POINTS and _loads(measured).max() + 1 >= _LEAST_LOADS:
            found[path.stem] = measured
    return found


def _judged(sweeps: dict[str, list[Measurement]]) -> list[dict[str, Any]]:
    return [{"name": name, **_of_sweep(sweeps[name])} for name in sorted(sweeps, key=str.lower)]


def _of_sweep(measured: list[Measurement]) -> dict[str, Any]:
    load_R, gammas = _loads(measured), sorted({one.gamma for one in measured})
    colour_R = (load_R + np.array([gammas.index(one.gamma) for one in measured])) % 2
    boards = [one for side in (0, 1) if (one := _split(measured, colour_R == side))]
    whole = fit_measurements(measured)
    return {
        "points": len(_points(measured)),
        "form": _form(whole),
        "inside": {name: float(np.mean([one[name] for one in boards])) for name in ("error", "line")}
        if boards
        else None,
        "inside_printed": [one["inside"] / one["error"] for one in boards if one["inside"] is not None],
        "lighter": _split(measured, load_R > 0),
        "heavier": _split(measured, load_R < load_R.max()),
        "given_up": _given_up(whole),
    }


def _split(measured: list[Measurement], known_R: Bools) -> dict[str, Any] | None:
    """Errors of costs that are fitted to some on the others, and those that the costs say they have. None if they are too few."""
    known, asked = (
        [one for one, is_so in zip(measured, known_R == side, strict=True) if is_so] for side in (True, False)
    )
    try:
        costs = fit_measurements(known)
    except UsageError:
        return None
    asked = _points(asked)
    ours_R, line_R = (found_R / tpot(asked) - 1 for found_R in (predicted_tpot(costs, asked), peer_tpot(known, asked)))
    return {
        "error": float(np.abs(ours_R).mean()),
        "line": float(np.abs(line_R).mean()),
        "inside": costs.accuracy.left_out,
        "lighter": costs.edge.lighter if costs.edge else None,
        "heavier": costs.edge.heavier if costs.edge else None,
    }


def _given_up(costs: FittedCosts) -> list[float]:
    """By measured load: measured time per token at the scheduled draft length / that of the fastest measured length - 1."""
    if not costs.max_gamma:
        return []
    workload = measured_acceptance_workload(costs.tokens_by_gamma, _CONTEXT, _TOKENS, costs.max_gamma)
    workload = replace(workload, of_measurements=True, tokens_error=costs.tokens_error)
    lengths_N = chosen_lengths(workload, costs, costs.max_requests)
    load_C = point_numbers(np.array([one.requests for one in costs.cells]), np.zeros(len(costs.cells)))
    lost = []
    for load in range(load_C.max() + 1):
        here = [one for one, number in zip(costs.cells, load_C, strict=True) if number == load]
        seconds = {one.gamma: one.step_seconds / one.tokens_per_step for one in here}
        batch = min(max(1, round(float(np.mean([one.batch for one in here])))), len(lengths_N))
        chosen = int(lengths_N[batch - 1])
        if len(seconds) > 1 and chosen in seconds:
            lost.append(seconds[chosen] / min(seconds.values()) - 1)
    return lost


def _loads(measured: Sequence[Measurement]) -> NDArray[np.int64]:
    """The number of each one's load, from the lightest on."""
    return point_numbers(np.array([one.requests for one in measured], dtype=np.float64), np.zeros(len(measured)))


def _points(measured: Sequence[Measurement]) -> list[Measurement]:
    """Means of repeats."""
    point_R = point_numbers(
        *(np.array([getattr(one, name) for one in measured], float) for name in ("requests", "gamma"))
    )
    found = []
    for point in range(point_R.max() + 1):
        same = [one for one, number in zip(measured, point_R, strict=True) if number == point]
        names = ("requests", "step_seconds", "tokens_per_step")
        means: dict[str, Any] = {name: float(np.mean([getattr(one, name) for one in same])) for name in names}
        found.append(replace(same[0], **means))
    return found


def _form(costs: FittedCosts) -> str:
    if costs.piecewise is None:
        return "line"
    terms = costs.piecewise.terms
    names = {
        "bend": len(terms.breakpoints) == 1,
        "bends": len(terms.breakpoints) > 1,
        "tiles": terms.tiles,
        "drops": terms.drops,
        "power": terms.powers,
        "rise": terms.rises,
    }
    return " and ".join(name for name, is_so in names.items() if is_so)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Public sweeps of servers\n"
    yield (
        f"{len(figure['given'])} sweeps that the forms of the costs were chosen by, and {len(figure['found'])} that were "
        "transcribed before the first fit and judged once, after everything was settled (`tests/fixtures/found_sweeps`). Inside: "
        "chessboards, as below. Lighter, heavier: the lightest and the heaviest load, predicted from the others. In brackets the "
        "line, in italics the error that the costs themselves print for it. Given up: measured time per token at the scheduled "
        "draft length, relative to the fastest measured one; the worst load. MAPE of the time per token.\n"
    )
    yield "| sweep | points | form | inside | lighter | heavier | given up |"
    yield "|---|---|---|---|---|---|---|"
    for group in ("given", "found"):
        for one in figure[group]:
            name = one["name"] if group == "given" else f"{one['name']} (found)"
            given_up = f"{max(one['given_up']):.1%}" if one["given_up"] else ""
            yield (
                f"| {name} | {one['points']} | {one['form']} | {_cell(one['inside'])} | {_cell(one['lighter'], 'lighter')} | "
                f"{_cell(one['heavier'], 'heavier')} | {given_up} |"
            )
    yield "\nMedian and 90th percentile; aims in the first row. Printed: sweeps whose printed error is within a factor of 2:\n"
    yield "| sweeps | inside | lighter | heavier | given up: mean, worst | printed inside | printed lighter | printed heavier |"
    yield "|---|---|---|---|---|---|---|---|"
    yield "| aim | 4.5% | 6%, 15% | 7%, 26% | 1%, 4% | 80% | 80% | 80% |"
    for name, sweeps in (
        ("given", figure["given"]),
        ("found", figure["found"]),
        ("all", figure["given"] + figure["found"]),
    ):
        yield f"| {name} | {' | '.join(_summary(sweeps))} |"


def _cell(found: dict[str, Any] | None, side: str | None = None) -> str:
    if found is None:
        return ""
    printed = f", *{found[side]:.1%}*" if side and found[side] is not None else ""
    return f"**{found['error']:.1%}** ({found['line']:.1%}){printed}"


def _summary(sweeps: list[dict[str, Any]]) -> Iterator[str]:
    sides = ("inside", "lighter", "heavier")
    for side in sides:
        errors = [one[side]["error"] for one in sweeps if one[side]]
        yield f"**{np.median(errors):.1%}**, {np.quantile(errors, 0.9):.1%}"
    given_up = [one for sweep in sweeps for one in sweep["given_up"]]
    yield f"**{np.mean(given_up):.1%}**, {max(given_up):.1%}"
    ratios = {
        side: [one[side][side] / one[side]["error"] for one in sweeps if one[side] and one[side][side]]
        for side in sides[1:]
    }
    ratios["inside"] = [float(np.mean(one["inside_printed"])) for one in sweeps if one["inside_printed"]]
    for side in sides:
        within = [1 / _FACTOR <= one <= _FACTOR for one in ratios[side]]
        yield f"**{np.mean(within):.0%}** of {len(within)}"

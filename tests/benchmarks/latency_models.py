"""How well costs fitted to a part of a measured sweep predict the rest of it, and p95 by request rate: a table of sweeps."""

from collections.abc import Iterator
from typing import Any

from tests.benchmarks.figures import write
from tests.benchmarks.sweeps import judged, our_sweep, rates, vllm_sweep

_STEP_AIM, _REGRET_AIM, _P95_AIM, _ABOVE_REPEATS = 0.08, 0.02, 0.15, 0.02
_STRETCHES_AIM, _LOSS_AIM = 8, 0.01


def main() -> None:
    sweeps = [our_sweep(), vllm_sweep()]
    figure = {"sweeps": [judged(one) for one in sweeps], "rates": rates(sweeps[-1])}
    write("latency_models", "python -m tests.benchmarks latency_models", figure)


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    yield "## Step costs fitted to part of a sweep, tested on the rest\n"
    yield (
        "Chessboards: loads and draft lengths alternate between two halves, each half predicts TPOT of the other. Lighter, "
        "heavier: the lightest and the heaviest load are predicted from the others. In brackets the figure of a non-negative "
        "least squares fit of [1/E, k/E, B/E, kB/E] to relative errors (E: tokens per step, k: draft length, B: requests). "
        "Repeats: mean difference of a step time from one turn to the next. Regret: measured TPOT at the draft length that the "
        "costs of a half choose, relative to the best measured one; mean over loads. Aims: at most "
        f"{_ABOVE_REPEATS:.0%} above the repeats on chessboards, {_STEP_AIM:.0%} one step beyond, regret {_REGRET_AIM:.0%}.\n"
    )
    yield (
        "vLLM's CPU build 0.32.0, in bf16 with one thread a server: a target of 331 M parameters with random weights, its upper "
        "layers scaled down so that its lowest layer, the draft, agrees with it at 0.77 of the positions "
        "(`constructed_pair.py`); prompts of 24 and outputs of 40 tokens, each up to 30% longer or shorter; temperature 0; "
        "`vllm.benchmarks.serve`, calls in random order, on 2 cores of an AMD EPYC (Zen 4). Command: `make "
        "bench-sweep`. A step over two tokens takes 70 ms there, one over one token 53 and over three 60; one request with one "
        "draft token has such a step, and nearly half of the error of the lightest load.\n"
    )
    yield "| sweep | points | repeats | chessboards: MAPE | R2 | lighter | heavier | mean regret |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in figure["sweeps"]:
        boards = one["chessboards"]
        yield (
            f"| {one['name']} | {len(one['loads'])} x {len(one['gammas'])} | {_percent(one['repeat_error'])} | "
            f"{_beside(boards, 'mape')} | **{min(half['r2'] for half in boards):.4f}** "
            f"({min(half['peer_r2'] for half in boards):.4f}) | {_beside([one['lighter']], 'mape')} | "
            f"{_beside([one['heavier']], 'mape')} | {_beside(boards, 'regret')} |"
        )
    yield (
        "\nThe best measured draft length by load, and the schedule from 1 to 256 requests by costs fitted to the whole sweep:\n"
    )
    yield (
        f"| sweep | best draft length by requests | stretches (aim {_STRETCHES_AIM}) | of the finest schedule | slower than it, "
        f"at most (aim {_LOSS_AIM:.0%}) |"
    )
    yield "|---|---|---|---|---|"
    for one in figure["sweeps"]:
        best = ", ".join(
            f"{load}: {gamma}" for load, gamma in sorted(one["best"].items(), key=lambda pair: int(pair[0]))
        )
        schedule = one["schedule"]
        yield f"| {one['name']} | {best} | **{len(schedule['stretches'])}** | {schedule['finest']} | **{schedule['loss']:.1%}** |"
    yield (
        f"\nvLLM's CPU build at Poisson arrivals, predicted from the sweep (aim: p95 within {_P95_AIM:.0%} below 80% of the "
        "limit):\n"
    )
    yield (
        "| requests/s | of the limit | requests | mean: measured s | predicted | p95: measured s | of each run | predicted | "
        "difference |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in figure["rates"]:
        runs = ", ".join(f"{run:.2f}" for run in one["p95_of_runs"])
        yield (
            f"| {one['rate']:g} | {one['load']:.0%} | {one['requests']:,} | {one['mean']:.2f} | {one['predicted_mean']:.2f} | "
            f"{one['p95']:.2f} | {runs} | {one['predicted_p95']:.2f} | **{one['predicted_p95'] / one['p95'] - 1:+.1%}** |"
        )


def _beside(parts: list[dict[str, Any]], name: str) -> str:
    """Ours, and the peer's in brackets."""
    ours, peer = ([value for part in parts for value in _listed(part[key])] for key in (name, f"peer_{name}"))
    return f"**{_percent(sum(ours) / len(ours))}** ({_percent(sum(peer) / len(peer))})"


def _listed(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"

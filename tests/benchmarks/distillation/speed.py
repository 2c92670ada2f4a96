"""How fast each way to train is, taking turns within one run, near the target: tokens a second, and steps that fit into a time.

The steps of every cell come from here and not from its own clock, so that an hour in which the machine is slow is nobody's loss.
"""

import json
from collections.abc import Mapping
from statistics import median
from typing import Any

from tests.benchmarks.distillation.place import CELLS, pair_digest

METHODS_TIMED = (
    "bare_loop",
    "shipped",
    "shipped_without_prompts",
    "lk_hybrid_muon",
    "forward_kl",
    "cross_entropy",
    "trl_sft",
    "trl_gkd",
    "online",
    "pruned",
)
OURS = "lk_hybrid_muon"
_SHORT, _LONG, _TURNS = 5, 35, 3  # steps of two trainings, whose difference leaves out what is paid once
_RATE = 1e-3
_SAME_PACE = {"alone": "pruned"}
_WITH_TRIALS = 3  # times what is paid once: up to four trials of a rate begin a training and are examined
_FILE = CELLS / "speed.json"


def measure_speed() -> Mapping[str, Any]:
    """By method, medians over turns: tokens a second, seconds of a step and of what is paid once, and ratios within a turn."""
    if _FILE.exists() and (kept := json.loads(_FILE.read_text()))["pair"] == pair_digest():
        return dict(kept["methods"])
    from tests.benchmarks.distillation.data import find_regime
    from tests.benchmarks.distillation.methods import METHODS

    regime = find_regime("near")
    for name in METHODS_TIMED:
        METHODS[name](regime, 2, 0, _RATE)
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in METHODS_TIMED}
    for _ in range(_TURNS):
        for name in METHODS_TIMED:
            short, long = (METHODS[name](regime, steps, 0, _RATE) for steps in (_SHORT, _LONG))
            step = (long.seconds - short.seconds) / (_LONG - _SHORT)
            turns[name].append((step, short.seconds - _SHORT * step, long.tokens / _LONG / step))
    found = {name: _row(values, turns) for name, values in turns.items()}
    CELLS.mkdir(parents=True, exist_ok=True)
    _FILE.write_text(json.dumps({"pair": pair_digest(), "methods": found}, indent=1) + "\n")
    return found


def steps_within(seconds: float, method: str) -> int:
    """Optimiser steps of `method` in that time, with what is paid once: the pace is that of the same optimizer and draft."""
    pace = _pace(method)
    once = pace["once"] * (_WITH_TRIALS if method.startswith("shipped") else 1)
    return max(1, int((seconds - once) / pace["step"]))


def seconds_of(steps: int, method: str) -> float:
    """The other way round."""
    pace = _pace(method)
    return float(pace["once"] + steps * pace["step"])


def _pace(method: str) -> Mapping[str, float]:
    speed = measure_speed()
    kind = method if method in speed else _SAME_PACE.get(method, OURS if method.endswith("_muon") else "forward_kl")
    pace: Mapping[str, float] = speed[kind]
    return pace


def _row(
    values: list[tuple[float, float, float]], turns: Mapping[str, list[tuple[float, float, float]]]
) -> dict[str, float]:
    def over(name: str) -> float:
        return median(own[2] / other[2] for own, other in zip(values, turns[name], strict=True))

    return {
        "step": median(step for step, _, _ in values),
        "once": median(once for _, once, _ in values),
        "tokens_per_second": median(tokens for _, _, tokens in values),
        "of_the_bare_loop": over("bare_loop"),
        "ours_over_it": 1 / over(OURS),
    }

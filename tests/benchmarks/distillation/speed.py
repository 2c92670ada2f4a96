"""Training tokens per second of each way to train, taking turns within one run, near the target."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from tests.benchmarks.distillation.cells import OURS

_METHODS = ("bare_loop", OURS, "forward_kl", "cross_entropy", "trl_sft", "trl_gkd")
_SHORT, _LONG, _TURNS = 10, 50, 3  # steps of two trainings, whose difference leaves out what is paid once
_RATE = 1e-3


def measure_speed() -> Mapping[str, Any]:
    """Median over turns, and each turn's ratio to the bare loop."""
    from tests.benchmarks.distillation.data import find_regime
    from tests.benchmarks.distillation.methods import METHODS

    regime = find_regime("near")
    for name in _METHODS:
        METHODS[name](regime, 2, 0, _RATE)
    turns: dict[str, list[float]] = {name: [] for name in _METHODS}
    for _ in range(_TURNS):
        for name in _METHODS:
            short, long = (METHODS[name](regime, steps, 0, _RATE) for steps in (_SHORT, _LONG))
            turns[name].append((long.tokens - short.tokens) / (long.seconds - short.seconds))
    return {
        name: {
            "tokens_per_second": median(values),
            "of_the_bare_loop": median(own / bare for own, bare in zip(values, turns["bare_loop"], strict=True)),
            "ours_over_it": median(ours / own for own, ours in zip(values, turns[OURS], strict=True)),
        }
        for name, values in turns.items()
    }

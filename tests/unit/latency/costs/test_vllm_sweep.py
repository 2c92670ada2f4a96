"""A sweep that vLLM's own load generator measured (`tests/fixtures/vllm_sweep`): read, fitted, held against the rest of it.

The files do not change, so nothing here can fail by chance.
"""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.sweeps import Sweep, judged, rates, vllm_sweep
from tests.benchmarks.vllm_sweep import LENGTHS, PROMPTS, RATES


@cache
def _sweep() -> Sweep:
    return vllm_sweep()


@cache
def _judged() -> dict[str, Any]:
    return judged(_sweep())


def test_the_files_are_read_as_they_are() -> None:
    """Draft lengths from --metadata, tokens per step from the counters; of one request all is in the batch."""
    for turn in _sweep().turns:
        assert set(product(PROMPTS, LENGTHS)) == set(turn)
        for (concurrency, gamma), one in turn.items():
            assert (concurrency, gamma) == (one.requests, one.gamma)
            assert PROMPTS[concurrency] / concurrency == one.requests_per_place
            assert (gamma == 0) == (one.tokens_per_step == 1)
            assert 0.02 < one.step_seconds < 1
            assert (concurrency == 1) == (one.in_batch is None)
            assert one.in_batch is None or 0.8 * concurrency < one.in_batch < concurrency


def test_half_of_it_predicts_the_other() -> None:
    """Within two points of the difference between repeats, in the mean of both halves; a regret of at most 2%."""
    found = _judged()

    assert np.mean([half["mape"] for half in found["chessboards"]]) < found["repeat_error"] + 0.02
    assert np.mean([half["regret"] for half in found["chessboards"]]) < 0.02
    assert len(set(found["best"].values())) > 2  # there is a choice to make


@pytest.mark.parametrize(("side", "error"), [("lighter", 0.08), ("heavier", 0.08)])
def test_one_load_beyond_is_predicted(side: str, error: float) -> None:
    """Within 8%, from the other four loads."""
    assert _judged()[side]["mape"] < error


def test_p95_is_predicted_by_rate() -> None:
    """Within 15%, below 80% of the limit."""
    found = rates(_sweep())

    assert sorted({rate for rates_ in RATES.values() for rate in rates_}) == [one["rate"] for one in found]
    for one in found:
        assert 0.3 < one["load"] < 0.8
        assert pytest.approx(one["p95"], rel=0.15) == one["predicted_p95"]
        assert pytest.approx(one["mean"], rel=0.15) == one["predicted_mean"]


def test_its_schedule_is_short() -> None:
    """At most 8 stretches from 1 to 256 requests, at most 1% slower than the finest."""
    schedule = _judged()["schedule"]

    assert len(schedule["stretches"]) <= 8
    assert schedule["loss"] <= 0.01 + 1e-9

"""Draft lengths that were measured at one load: the best of them there, and nothing of other loads."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.commands.tables.latency_fit import print_costs
from pipeline.commands.tables.latency_schedule import print_schedule, schedule_json
from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.prediction import draft_option
from pipeline.latency.load.schedule import Schedule, for_vllm, make_schedule
from pipeline.latency.load.workload import measured_acceptance_workload

# Of 32 requests: seconds of a step and tokens per step by draft length; 3 is the fastest, by 10%.
STEPS = {0: (0.014, 1.0), 1: (0.0155, 1.7), 3: (0.018, 2.7), 7: (0.025, 3.4)}


def _fitted(place: Path, loads: tuple[float, ...] = (32.0,)) -> FittedCosts:
    measured = [
        Measurement(where=f"{load}, {gamma}", requests=load, gamma=gamma, tokens_per_step=tokens, step_seconds=step)
        for gamma, (step, tokens) in STEPS.items()
        for load in loads
    ]
    (place / "costs.json").write_text(json.dumps(fit_measurements(measured).json()))
    found = read_step_costs(place / "costs.json", one_load=True)
    assert isinstance(found, FittedCosts)
    return found


def _schedule(found: FittedCosts) -> Schedule:
    assert found.load is not None
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 256, found.max_gamma)
    option = draft_option("draft", replace(workload, of_measurements=True), found, found.load)
    return make_schedule([option]).at_load(found.load)


@pytest.mark.parametrize("loads", [(32.0,), (31.4, 32.6)])
def test_the_best_length_at_one_load_is_a_measured_one(loads: tuple[float, ...], tmp_path: Path) -> None:
    """Its speedup is the measured one, to the rounding of an output's last step; lengths between are not chosen."""
    found = _fitted(tmp_path, loads)
    schedule = _schedule(found)

    assert 32 == found.load
    assert [3] * 32 == schedule.lengths_N.tolist()
    assert pytest.approx(0.014 / (0.018 / 2.7), rel=0.02) == schedule.speedup_N[-1]
    assert {"num_speculative_tokens": 3} == for_vllm(schedule.lengths_N)


def test_lengths_at_one_rate_of_arrivals_are_at_one_load(tmp_path: Path) -> None:
    """At 1,000 tokens per second faster drafts have fewer requests: 14 of plain decoding, 6.7 of length 3. At loads of their own
    they are not compared."""
    measured = [
        Measurement(
            where=str(gamma), requests=1000 * step / tokens, gamma=gamma, tokens_per_step=tokens, step_seconds=step
        )
        for gamma, (step, tokens) in STEPS.items()
    ]
    (tmp_path / "costs.json").write_text(json.dumps(fit_measurements(measured).json()))
    found = read_step_costs(tmp_path / "costs.json", one_load=True)
    assert isinstance(found, FittedCosts)

    assert (14, 3) == (found.load, _schedule(found).lengths_N[-1])
    with pytest.raises(UsageError, match=r"^all draft lengths were measured at loads of their own"):
        fit_measurements([replace(one, requests=2.0 * one.requests**2) for one in measured])
    with pytest.raises(UsageError, match=r"^all draft lengths .* or alone"):  # a profile of one batch size
        fit_measurements([replace(one, isolated=True, requests=1.0) for one in measured])


def test_nothing_is_said_of_other_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in the table, nor in its JSON, nor by `predict`."""
    found = _fitted(tmp_path)
    schedule = _schedule(found)
    print_schedule(schedule, [])
    print_costs(found, 4, None)
    table = capsys.readouterr().out

    assert "speculation is faster at batch size 32 (batch cap: 32)" in table
    assert "1 to 32" not in table
    assert "measured: 32 requests, draft lengths 0, 1, 3, 7; nothing is known of other loads" in table
    assert "verify_each" not in table
    assert [None] * 31 == schedule_json(schedule)["speedup"][:-1]
    assert [32] == [batch for batch, known in enumerate(schedule.measured_N, 1) if known]
    with pytest.raises(UsageError, match="so nothing is known of others and of latency by load"):
        read_step_costs(tmp_path / "costs.json")


def test_several_loads_are_not_one(tmp_path: Path) -> None:
    """From 8% apart on; and plain decoding alone has no draft length to choose."""
    assert _fitted(tmp_path, (32.0, 36.0)).load is None
    with pytest.raises(UsageError, match="have the same number of requests"):
        fit_measurements([Measurement(where="a", requests=4, gamma=0, tokens_per_step=1, step_seconds=0.01)] * 2)


def test_a_length_at_one_load_that_is_no_whole_number_is_in_the_file(tmp_path: Path) -> None:
    """A mean concurrency of 7.5 was written as 8 to 7 requests, which no file may have."""
    loads = ((0, 1.0, 0.010), (0, 4.0, 0.011), (0, 7.5, 0.012), (3, 7.5, 0.016))
    path = tmp_path / "sweep.csv"
    rows = [f"{load},{gamma},{1e3 * step},{2.5 if gamma else 1}" for gamma, load, step in loads]
    path.write_text("\n".join(("running,k,step_ms,acceptance_length", *rows)))
    (tmp_path / "costs.json").write_text(json.dumps(fit_measurements(read_measurements(path).measured).json()))
    found = read_step_costs(tmp_path / "costs.json")

    assert (8, 8) == found.measured_requests[3]
    assert np.isfinite(found.steps(8, 100)).all()

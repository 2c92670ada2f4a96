"""Draft lengths for a stated load, and what is said of the times they were computed from."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.export import lengths
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts, LeaveOneOut
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.load.workload import constant_acceptance_workload

COSTS = fit_measurements(
    [
        Measurement(
            where="here", requests=load, gamma=gamma, tokens_per_step=1.0 + gamma / 2, step_seconds=0.02 + load / 1e4
        )
        for load, gamma in product((1, 8, 16), (0, 2))
    ]
)


@pytest.mark.parametrize(
    ("error", "cap", "expected"),
    [
        (0.01, 16, ["draft lengths by gate.profile.int8: step times 1.0% off on left-out points"]),
        (0.6, 16, ["off at the edge, by the left-out outermost load; a speedup within that error is not certain"]),
        (
            0.01,
            20,
            ["1.0% off", "gate.profile.int8 has no times of the draft lengths at 4 of 20 batch sizes (from 17 on)"],
        ),
    ],
)
def test_an_export_says_how_far_its_times_are_off(
    error: float, cap: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule of costs that are 60% off, or of loads that nobody measured, was exported without a word."""
    path = tmp_path / "costs.json"
    path.touch()
    costs: FittedCosts = replace(COSTS, leave_one_out=LeaveOneOut(error, error))
    monkeypatch.setattr(lengths, "read_step_costs", lambda _: costs)
    monkeypatch.setattr(lengths, "read_workload", lambda _: constant_acceptance_workload(0.6, 100, 100, 2))
    gate = SimpleNamespace(load=SimpleNamespace(max_batch=cap), profile={"int8": str(path)})
    config = SimpleNamespace(gate=gate, evaluate=SimpleNamespace(gamma=2))
    draft: Any = SimpleNamespace(config=config, variant="int8", given=None, examination=SimpleNamespace(path=path))
    notes = lengths.choose_lengths(draft, schedules=True).notes

    assert [True] * len(expected) == [said in note for said, note in zip(expected, notes, strict=True)]

"""Measurements that do not say how many draft tokens were accepted, and measurements without a draft."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipeline.commands.latency.options import read_costs_and_workload
from pipeline.commands.tables.latency_fit import print_costs
from pipeline.commands.tables.latency_predict import above_measured, near_capacity, print_prediction
from pipeline.commands.tables.latency_schedule import print_schedule, schedule_json
from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.measurements import Table
from pipeline.latency.load.prediction import chosen_lengths, draft_option, predict
from pipeline.latency.load.schedule import make_schedule
from pipeline.latency.load.workload import Workload
from tests.unit.latency.sweeps import read_table

LOADS, LENGTHS = (1, 2, 4, 8, 16, 32), {0: 1.0, 3: 2.4}


def _step(load: float, gamma: int) -> float:
    """Drafts are slower from about 8 requests on."""
    return 0.020 + 0.002 * gamma + load * (4e-4 + 9e-4 * gamma)


def _throughputs(place: Path, gammas: tuple[int, ...] = (0, 3)) -> Table:
    rows = [f"{n},{g},{n * LENGTHS[g] / _step(n, g)}" for n, g in product(LOADS, gammas)]
    return read_table(place, "concurrency,k,output_tok_s", *rows)


def _costs(place: Path, table: Table) -> tuple[FittedCosts, Path]:
    found = fit_measurements(table.measured)
    path = place / "costs.json"
    path.write_text(json.dumps(found.json()))
    return found, path


def _workload(path: Path) -> Workload:
    _, workload = read_costs_and_workload(path, None, None, "256", 128)
    return workload


def test_without_acceptance_drafts_are_compared_by_time_per_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused until now, although the times say which is faster; no break-even, no length that was not measured."""
    table = _throughputs(tmp_path)
    found, path = _costs(tmp_path, table)
    schedule = make_schedule([draft_option("draft", _workload(path), found, 32)])
    faster = [_step(n, 3) / LENGTHS[3] < _step(n, 0) for n in LOADS]

    assert any(
        "the acceptance is unknown, so drafts are compared by their time per token" in note for note in table.notes
    )
    assert [3 if one else 0 for one in faster] == [schedule.lengths_N[n - 1] for n in LOADS]
    assert {0, 3} == set(schedule.lengths_N.tolist())
    expected = [_step(n, 0) * LENGTHS[3] / _step(n, 3) for n in LOADS[:3]]
    assert pytest.approx(expected, rel=0.06) == [schedule.speedup_N[n - 1] for n in LOADS[:3]]
    print_schedule(schedule, [])
    assert "unknown" in capsys.readouterr().out
    assert found == fitted_costs_from_json(json.loads(json.dumps(found.json())), "costs.json")


def test_no_cost_of_a_draft_token_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its time is not known; what was printed counted all draft tokens as accepted, several times what they cost."""
    found, _ = _costs(tmp_path, _throughputs(tmp_path))
    print_costs(found, 12, None)
    printed = capsys.readouterr().out
    assert "per step" in printed
    assert "draft token" not in printed


def test_another_acceptance_is_refused_beside_them(tmp_path: Path) -> None:
    """The step times are not known, so they cannot be combined with it; two files of both kinds cannot be fitted together."""
    table = _throughputs(tmp_path)
    found, path = _costs(tmp_path, table)
    _, workload = read_costs_and_workload(path, None, 0.8, "256", 128)
    stated = read_table(tmp_path, "concurrency,k,output_tok_s,acceptance_length", "4,3,100,2.4")

    with pytest.raises(UsageError, match="cannot be used with another acceptance"):
        chosen_lengths(workload, found, 32)
    with pytest.raises(UsageError, match="cannot be used with another acceptance"):
        predict(workload, found, np.full(32, 3), [0.1])
    with pytest.raises(UsageError, match="fit the two files alone"):
        fit_measurements([*table.measured, *stated.measured])


def test_a_row_without_acceptance_in_a_table_that_has_it_is_refused(tmp_path: Path) -> None:
    """It would be another kind of step than the others."""
    with pytest.raises(UsageError, match="line 3: draft length 3, but the acceptance is unknown"):
        read_table(tmp_path, "concurrency,k,tpot_ms,acceptance_length", "1,3,10,2.4", "4,3,11,")


@pytest.mark.parametrize(
    ("header", "row", "tokens"),
    [
        ("concurrency,k,mean_itl_ms,mean_tpot_ms", "4,3,24,10", 2.4),
        ("concurrency,k,mean_itl_ms,mean_tpot_ms", "4,3,41,10", 4.0),  # within rounding of what is possible
        ("concurrency,k,mean_itl_ms,mean_tpot_ms,acceptance_length", "4,3,24,10,2.5", 2.5),
        ("concurrency,k,mean_itl_ms,mean_tpot_ms", "4,3,10.4,10", None),  # a time per token under both names
        ("concurrency,k,mean_itl_ms,median_tpot_ms", "4,3,24,10", None),
    ],
)
def test_tokens_per_step_are_the_time_between_chunks_over_the_time_per_token(
    header: str, row: str, tokens: float | None, tmp_path: Path
) -> None:
    """Where nothing states them."""
    (one,) = read_table(tmp_path, header, row).measured

    assert (tokens is not None) == one.acceptance_known
    assert tokens is None or pytest.approx(tokens) == one.tokens_per_step


def test_costs_without_drafts_predict_plain_decoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were refused; a simulation of them too. There is one capacity, and no speedup."""
    found, path = _costs(tmp_path, _throughputs(tmp_path, (0,)))
    workload = _workload(path)
    prediction = predict(workload, found, chosen_lengths(workload, found, 32), [0.2, 1.0], simulated=400)
    print_prediction(prediction, [0.95], np.zeros(32, dtype=np.int64), 256, above_measured(prediction, 256))
    told = capsys.readouterr().out

    assert not prediction.drafts
    assert "plain decoding only" in told
    assert "specul" not in told.lower()
    assert not any("speculation" in note for note in near_capacity(prediction))
    for point in prediction.points:
        assert point.plain is not None
        assert point.simulated is not None
        assert pytest.approx(point.plain.mean, rel=0.1) == point.simulated.mean


def test_drafts_alone_have_a_schedule_without_speedups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest of the measured lengths by time per token, never 0; what needs plain decoding is unknown."""
    rows = [f"{n},{g},{n * (1 + 0.5 * g) / _step(n, g)}" for n, g in product(LOADS, (1, 3))]
    found, path = _costs(tmp_path, read_table(tmp_path, "concurrency,k,output_tok_s", *rows))
    with pytest.raises(UsageError, match="no measurement of plain decoding"):
        read_costs_and_workload(path, None, None, "256", 128)
    _, workload = read_costs_and_workload(path, None, None, "256", 128, plain=False)
    schedule = make_schedule([draft_option("draft", workload, found, 32)])
    fastest = [min((1, 3), key=lambda g: _step(n, g) / (1 + 0.5 * g)) for n in LOADS]

    assert fastest == [schedule.lengths_N[n - 1] for n in LOADS]
    assert {1, 3} == set(schedule.lengths_N.tolist()) == set(fastest)
    assert np.isnan([schedule.speedup_N, schedule.break_even_N]).all()
    print_schedule(schedule, [])
    assert "faster at batch size" not in capsys.readouterr().out
    assert [None] * 32 == schedule_json(schedule)["speedup"]

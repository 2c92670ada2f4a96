"""Which form costs have, how far off they are at the edge, and a simulated sweep whose costs are known."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.latency.costs.fit import least_squares
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.forms import choose_form, edge_error, left_out
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.load.simulation import SimulatedReplica, simulate
from pipeline.latency.load.workload import constant_acceptance_workload, make_traces

LOADS, GAMMAS = (1, 2, 4, 8, 16, 32, 64), (0, 1, 3)
PREFILL, OUTPUTS, ACCEPTANCE = 0.01, np.arange(50, 151, 10), 0.7


def _concave(batch: float, gamma: float) -> float:
    """A mixture of experts: each further token of a pass reads fewer experts that no other has read."""
    return 0.008 + 0.003 * (batch * (gamma + 1)) ** 0.6 + 0.001 * gamma * batch**0.3


def _steps(loads: tuple[int, ...] = LOADS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batch_R, gamma_R = np.array(list(product(loads, GAMMAS)), dtype=np.float64).T
    return batch_R, gamma_R, np.array([_concave(*place) for place in zip(batch_R, gamma_R, strict=True)])


def test_steps_that_are_concave_in_the_batch_are_a_power() -> None:
    """Between the loads within 1%, and one load beyond within 5%; a line is off by more than five times as much."""
    chosen = choose_form(*_steps(), None)

    assert chosen.piecewise is not None
    assert chosen.piecewise.terms.powers
    for gamma, (batch, error) in product(GAMMAS, ((3, 0.01), (12, 0.01), (48, 0.01), (128, 0.05))):
        assert pytest.approx(_concave(batch, gamma), rel=error) == chosen.piecewise.step_seconds(batch, gamma).item()
    errors = _fitted(LOADS).leave_one_out
    assert errors is not None
    assert errors.linear > 5 * errors.chosen


def test_the_edge_is_known_where_other_loads_tell() -> None:
    """0 for exact costs. With a jump at the heaviest load it is far off there, and known to be. Two loads tell nothing."""
    batch_R, gamma_R, seconds_R = _steps()
    line_R = 0.02 + 0.001 * batch_R
    jump_R = np.where(batch_R == LOADS[-1], 2 * line_R, line_R)
    exact, jumping = (edge_error(batch_R, gamma_R, one_R, None, 0.02) for one_R in (line_R, jump_R))

    assert exact is not None
    assert jumping is not None
    assert pytest.approx(0, abs=1e-4) == max(exact.lighter, exact.heavier)
    assert pytest.approx((0.5 * 1.5 * 0.02 * 0.06) ** (1 / 3), rel=0.01) == jumping.heavier
    two_R = batch_R <= LOADS[1]
    assert edge_error(batch_R[two_R], gamma_R[two_R], seconds_R[two_R], None, 0.02) is None


def test_a_figure_at_the_edge_has_its_error() -> None:
    """From the heaviest load of its draft length on. One request is no edge: nothing is lighter."""
    found = _fitted(LOADS)
    edge = found.edge

    assert edge is not None
    inside, at = found.accuracy, found.accuracy_at(1, 64)
    assert [inside] * 3 == [found.accuracy_at(gamma, batch) for gamma, batch in ((0, 1), (3, 20), (0, 0.3))]
    assert at.edge
    assert at.left_out == max(edge.heavier, inside.left_out or 0.0)
    assert at == found.accuracy_at(3, 100)
    lightest = _fitted(LOADS[2:])
    assert [True, True, False] == [lightest.accuracy_at(0, batch).edge for batch in (1, 4, 5)]


def _fitted(loads: tuple[int, ...]) -> FittedCosts:
    """Of concave steps with a noise of 2%."""
    random = np.random.default_rng(0)
    return fit_measurements(
        [
            Measurement(
                where="here",
                requests=load,
                gamma=gamma,
                tokens_per_step=1 + gamma / 2,
                step_seconds=_concave(load, gamma) * random.uniform(0.98, 1.02),
            )
            for load, gamma in product(loads, GAMMAS)
        ]
    )


def test_a_simulated_sweep_gives_its_costs_back(tmp_path: Path) -> None:
    """A load generator that keeps requests open, random acceptance, prefills that block the batch: fitted from the table that it
    would write. Each step within 2%, between the loads too; the prefill within 10%. The seed is fixed."""
    loads = LOADS[:-1]
    workload = constant_acceptance_workload(ACCEPTANCE, 100, OUTPUTS, max(GAMMAS))
    step_GN = np.array([[_concave(n, gamma) for n in range(1, max(loads) + 1)] for gamma in range(max(GAMMAS) + 1)])
    rows = ["concurrency,k,tpot_ms,ttft_ms,acceptance_length,tokens,completed"]
    for gamma in GAMMAS:
        traces, length = make_traces(workload, max(gamma, 1)), iid_tokens_per_call(ACCEPTANCE, gamma) if gamma else ""
        for load in loads:
            replica = SimulatedReplica(
                step_GN[:, :load], lambda tokens: PREFILL * (tokens > 0), lambda _, gamma=gamma: gamma
            )
            served = simulate(replica, traces, 1e9, count := max(100, 12 * load), seed=1)
            outputs_R = OUTPUTS[served.trace_R]
            tpot = (served.finished_R - served.first_token_R).sum() / (outputs_R - 1).sum()
            ttft = f"{1e3 * PREFILL}" if load == 1 else ""
            rows.append(f"{load},{gamma},{1e3 * tpot},{ttft},{length},{outputs_R.mean()},{count}")
    table = tmp_path / "sweep.csv"
    table.write_text("\n".join(rows) + "\n")
    found = fit_measurements(read_measurements(table).measured)

    places = [(batch, gamma) for batch, gamma in product((1, 3, 6, 12, 24, 32), GAMMAS)]
    errors = [found.step_seconds(*place).item() / _concave(*place) - 1 for place in places]
    assert np.abs(errors).max() < 0.02
    assert pytest.approx(PREFILL, rel=0.1) == found.prefill


@pytest.mark.parametrize("seed", range(5))
def test_points_that_are_left_out_are_predicted_by_a_fit_to_the_others(seed: int) -> None:
    """Each by non-negative least squares of its own, whichever coefficients are above 0. Exact, so for any seed."""
    rng = np.random.default_rng(seed)
    columns_RK, point_R = rng.uniform(0, 1, (24, 8)), np.arange(24) // 2
    columns_RK[:, 7] = point_R == 3  # a term of one point
    seconds_R = columns_RK @ np.maximum(rng.normal(size=8), 0) + rng.uniform(0.1, 0.4, 24)
    values_K = [least_squares(columns_RK[point_R != p], seconds_R[point_R != p], 1e-3) for p in point_R]

    assert 1 < len({tuple(one > 0) for one in values_K})
    expected_R = [columns_RK[row] @ one for row, one in enumerate(values_K)]
    np.testing.assert_allclose(left_out(columns_RK, seconds_R, 1e-3, point_R), expected_R, rtol=1e-9)

"""Times per token and steps: one relation, there and back."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import read_measurements
from pipeline.latency.costs.output_rounds import acceptance_rate, tokens_per_round, tokens_per_step
from pipeline.latency.load.workload import measured_acceptance_workload, server_capacity


@pytest.mark.parametrize("tokens", [9.0, 16.0, 40.5, 500.0, 5000.0])
@pytest.mark.parametrize(("length", "gamma"), [(1.0, 3), (2.4, 3), (3.9, 5), (4.0, 3)])
def test_the_relation_goes_both_ways(length: float, gamma: int, tokens: float) -> None:
    """Of short outputs, and beyond those that are counted out."""
    per_round = tokens_per_round(length, gamma, tokens)

    assert per_round <= length + 1e-9
    assert pytest.approx(length, rel=0.001) == tokens_per_step(per_round, gamma, tokens)


def test_rounds_are_those_of_a_workload() -> None:
    """Also beyond the outputs that are counted out; the rest has the mean number of tokens per step."""
    for tokens in (16, 40, 700):
        workload = measured_acceptance_workload({3: 2.4}, 100, tokens, 3)
        assert pytest.approx((tokens - 1) / workload.rounds_G[3], rel=1e-4) == tokens_per_round(2.4, 3, tokens)
    assert 3.0 == tokens_per_round(3.0, 3, None)
    assert 1.0 == acceptance_rate(4.0, 3)  # all accepted


@pytest.mark.parametrize("column", ["tpot_ms", "output_tok_s"])
def test_short_outputs_have_the_capacity_that_was_measured(column: str, tmp_path: Path) -> None:
    """Outputs of 16 tokens: the capacity was 10% below the throughput of the measurements."""
    tokens, length, loads = 16, 3.0, (1, 2, 4, 8, 16)
    rounds = (tokens - 1) / tokens_per_round(length, 4, tokens)
    rows = [f"running,k,{column},acceptance_length,tokens"]
    for n in loads:
        for gamma in (0, 4):
            seconds = (0.02 + 0.001 * n + 0.004 * gamma) * (rounds if gamma else tokens - 1)  # of a request
            value = n * (tokens - 1) / seconds if column == "output_tok_s" else 1e3 * seconds / (tokens - 1)
            rows.append(f"{n},{gamma},{value},{length if gamma else ''},{tokens}")
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(rows) + "\n")
    found = fit_measurements(read_measurements(path).measured)
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, tokens, 4)
    capacity = server_capacity(workload, found, np.full(16, 4))

    assert pytest.approx(16 / ((0.02 + 0.016 + 0.016) * rounds), rel=0.01) == capacity.stability_limit

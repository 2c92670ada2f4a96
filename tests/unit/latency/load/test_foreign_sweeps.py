"""Sweeps as other people measure them, generated from known costs: what is read, what is fitted, what is said.

Each has the shape of a fault that was found on a sweep of others.
"""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements, worst_misfit
from pipeline.latency.costs.fitted import FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.measurements import read_measurements
from pipeline.latency.costs.output_rounds import tokens_per_round
from pipeline.latency.costs.step_costs import read_step_costs
from pipeline.latency.load.output_lengths import parse_output_lengths
from pipeline.latency.load.prediction import chosen_lengths, predict
from pipeline.latency.load.schedule import batch_ranges, draft_lengths, request_seconds
from pipeline.latency.load.workload import constant_acceptance_workload, measured_acceptance_workload

Step = Callable[[float, int], float]
LOADS, GAMMAS, OUTPUT = (1, 4, 16, 64, 256), (0, 1, 3, 5), 128.0
LENGTHS = {0: 1.0, 1: 1.7, 3: 2.5, 5: 2.8}


def gpu(batch: float, gamma: int) -> float:
    """Bound by memory bandwidth up to 64 tokens, then by compute."""
    tokens = batch * (gamma + 1)
    return 0.020 + 0.002 * gamma + 1e-5 * tokens + 1.5e-4 * max(0.0, tokens - 64)


def straight(batch: float, gamma: int) -> float:
    """Linear in the number of requests."""
    return 0.015 + 0.002 * gamma + batch * (3e-4 + 1e-4 * gamma)


def _row(batch: float, gamma: int, step: float) -> dict[str, Any]:
    tokens = LENGTHS[gamma]
    return {"concurrency": batch, "k": gamma, "mean_acceptance_length": tokens, "mean_tpot_ms": 1e3 * step / tokens}


def _sweep(
    step: Step, loads: Sequence[int] = LOADS, gammas: Sequence[int] = GAMMAS, **more: Callable[[float, int], Any]
) -> list[dict[str, Any]]:
    """The time per token is that of outputs of their length, which their last steps make longer."""
    rows = []
    for batch, gamma in product(loads, gammas):
        row = _row(batch, gamma, step(batch, gamma)) | {name: value(batch, gamma) for name, value in more.items()}
        per_round = tokens_per_round(LENGTHS[gamma], gamma, row.get("output_tokens"))
        rows.append(row | {"mean_tpot_ms": row["mean_tpot_ms"] * LENGTHS[gamma] / per_round})
    return rows


def _written(place: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = place / "sweep.csv"
    with path.open("w") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def _fitted(place: Path, rows: Sequence[Mapping[str, Any]]) -> FittedCosts:
    return fit_measurements(read_measurements(_written(place, rows)).measured)


def _error(found: FittedCosts, step: Step, loads: Sequence[int], gammas: Sequence[int] = GAMMAS) -> float:
    places = list(product(loads, gammas))
    true = np.array([step(*place) for place in places])
    return float(np.abs(np.array([found.step_seconds(*place) for place in places]) / true - 1).max())


def _blocked(prefill: float) -> Step:
    """Steps with the prefills of the others between them: each other request starts anew once per output, after a step."""

    def step(batch: float, gamma: int) -> float:
        steps = (OUTPUT - 1) / LENGTHS[gamma] + 2
        return straight(batch, gamma) + prefill * (batch - 1) * LENGTHS[gamma] / OUTPUT * (1 - 1 / steps)

    return step


def test_prefills_that_cannot_be_told_apart_stay_in_the_steps(tmp_path: Path) -> None:
    """One draft length: prefills are in proportion to requests. Their cost was dropped from the steps: 3.8 ms for 25.7."""
    step = _blocked(0.3)
    found = _fitted(tmp_path, _sweep(step, gammas=(3,), output_tokens=lambda *_: OUTPUT))

    assert 0.0 == found.prefill
    assert _error(found, step, LOADS, (3,)) < 0.01


@pytest.mark.parametrize("known", [True, False])
def test_blocking_prefills_are_taken_out(known: bool, tmp_path: Path) -> None:
    """With TTFT of one request, and without: then their cost is fitted."""
    rows = _sweep(_blocked(0.03), output_tokens=lambda *_: OUTPUT, ttft_ms=lambda batch, _: 30 * batch)
    found = _fitted(tmp_path, rows if known else [row for row in rows if row["concurrency"] > 1])

    assert pytest.approx(0.03, rel=0.02) == found.prefill
    assert _error(found, straight, LOADS) < 0.01


def test_prefills_that_are_part_of_a_step_take_what_they_add_to_it(tmp_path: Path) -> None:
    """TTFT of one request is a step of 15.3 ms and 40 ms for its prompt: each prefill delays the others by 40 ms. Each place
    serves 5 requests, the first ones without a delay to others."""
    rows = _sweep(
        lambda batch, gamma: straight(batch, gamma) + 0.8 * (_blocked(0.04)(batch, gamma) - straight(batch, gamma)),
        output_tokens=lambda *_: OUTPUT,
        ttft_ms=lambda _, gamma: 40 + 1e3 * straight(1, gamma),
        completed=lambda batch, _: 5 * batch,
    )
    found = _fitted(tmp_path, rows)

    assert pytest.approx(0.04, rel=0.02) == found.prefill
    assert 1 == found.first_steps
    assert _error(found, straight, LOADS) < 0.01


def test_repeats_of_nearly_the_same_load_are_one_point(tmp_path: Path) -> None:
    """They would otherwise predict each other when they are left out, and the error of a sweep with 20% of noise be 6%."""
    random = np.random.default_rng(0)
    noisy = _sweep(lambda batch, gamma: straight(batch, gamma) * random.choice([0.8, 1.2]), LOADS[1:])
    exact, shifted = (
        _fitted(
            tmp_path,
            [row | {"concurrency": row["concurrency"] * random.uniform(1 - by, 1 + by)} for row in noisy * 3],
        )
        for by in (0.0, 0.02)
    )

    assert pytest.approx(exact.leave_one_out.chosen, rel=0.2) == shifted.leave_one_out.chosen


def test_a_prefill_that_is_noise_stays_in_the_steps(tmp_path: Path) -> None:
    """No TTFT, no prefills in the data, 1% of noise: a fitted time would not differ from 0."""
    random = np.random.default_rng(3)
    rows = _sweep(straight, output_tokens=lambda *_: OUTPUT)
    noisy = [row | {"mean_tpot_ms": row["mean_tpot_ms"] * random.uniform(0.99, 1.01)} for row in rows]

    assert 0.0 == _fitted(tmp_path, noisy).prefill


def test_the_measurement_that_fits_worst_is_named(tmp_path: Path) -> None:
    """One cell is ten times too large."""
    rows = _sweep(straight)
    rows[7]["mean_tpot_ms"] *= 10
    table = read_measurements(_written(tmp_path, rows))
    worst = worst_misfit(fit_measurements(table.measured), table.measured)

    assert worst.where.endswith("line 9")
    assert worst.error > 1


def test_a_simulation_has_the_acceptance_of_the_draft_length_that_is_used(tmp_path: Path) -> None:
    """Plain decoding and draft length 3 were measured: at one request the schedule drafts 2 or 3, at many none. The formula and
    the simulation agree at a low rate."""
    found = _fitted(tmp_path, _sweep(straight, gammas=(0, 3)))
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 128, 3)
    lengths_N = chosen_lengths(workload, found, 32)
    (point,) = predict(workload, found, lengths_N, [0.01], simulated=500).points

    assert lengths_N[0] > 1
    assert point.speculative is not None
    assert point.simulated is not None
    assert pytest.approx(point.simulated.mean, rel=0.03) == point.speculative.mean


def test_sliced_prefills_stay_in_the_steps(tmp_path: Path) -> None:
    """The left-out error decides: without them the steps bend, with them they are straight. 5.7 and 23.8% off if taken out."""
    rows = _sweep(straight, output_tokens=lambda *_: OUTPUT, ttft_ms=lambda batch, _: 20 * batch)
    random = np.random.default_rng(0)
    noisy = [row | {"mean_tpot_ms": row["mean_tpot_ms"] * random.uniform(0.99, 1.01)} for row in rows]

    assert _error(_fitted(tmp_path, noisy), straight, LOADS) < 0.025


def test_ttft_is_part_of_the_latency_where_prefills_stay_in_the_steps(tmp_path: Path) -> None:
    """200 ms of one request are added to the mean and to p95, in the formula and in the simulation: a step of the batch, which
    takes as long as one alone at a low load, and the rest."""
    found = _fitted(tmp_path, _sweep(straight, ttft_ms=lambda *_: 200))
    workload = constant_acceptance_workload(0.7, 100, 128, 5)
    points = [
        predict(workload, one, np.full(16, 3), [0.5], simulated=200).points[0]
        for one in (found, replace(found, first_token=0.0))
    ]

    assert (0.0, 0.2) == (found.prefill, pytest.approx(found.first_token))
    for part in ("speculative", "simulated"):
        with_it, without = (getattr(point, part) for point in points)
        assert pytest.approx(0.2, rel=0.05) == with_it.mean - without.mean
        assert pytest.approx(0.2, rel=0.05) == with_it.quantile(0.95) - without.quantile(0.95)


def test_requests_sent_are_no_concurrency(tmp_path: Path) -> None:
    """A table that has both says which was read; one that has only `requests` is refused. 21.5% off when they were read."""
    rows = [{"requests": 10 * row["concurrency"] + 80, **row} for row in _sweep(straight)]
    table = read_measurements(_written(tmp_path, rows))

    assert set(LOADS) == {one.requests for one in table.measured}
    assert "concurrency as concurrency" in table.notes[0]
    assert "not read: requests" in table.notes
    alone = _written(tmp_path, [{name: row[name] for name in row if name != "concurrency"} for row in rows])
    with pytest.raises(UsageError, match="the number of concurrent requests is unknown: 'requests' can be how many"):
        read_measurements(alone)
    assert 90.0 == read_measurements(alone, {"concurrency": "requests"}).measured[0].requests


def test_running_requests_go_before_the_limit(tmp_path: Path) -> None:
    """Where a table has both, the batch is what ran."""
    rows = _sweep(straight, running=lambda batch, _: min(batch, 32))

    assert {1, 4, 16, 32} == {one.requests for one in read_measurements(_written(tmp_path, rows)).measured}


def test_an_acceptance_rate_is_accepted_over_drafted_unless_said_otherwise(tmp_path: Path) -> None:
    """1 + 3 x 0.5 = 2.5 tokens per step; per token it would be 1.875. The note says which, and how to say the other."""
    rows = [{"concurrency": 4, "k": 3, "acceptance_rate": 0.5, "tpot_ms": 10}]
    path = _written(tmp_path, rows)
    table = read_measurements(path)

    assert 2.5 == table.measured[0].tokens_per_step
    assert any("acceptance_rate was read as accepted / drafted" in note for note in table.notes)
    told = read_measurements(path, {"acceptance_rate": "acceptance_rate"})
    assert 1.875 == told.measured[0].tokens_per_step
    assert not any("was read as accepted" in note for note in told.notes)


def test_an_acceptance_rate_per_token_does_not_lengthen_the_steps(tmp_path: Path) -> None:
    """At draft length 4 the length of 0.7 per token is that of accepted / drafted less 1: it stays, with a note."""
    row = {"concurrency": 1, "k": 4, "acceptance_rate": 0.7, "acceptance_length": 2.773, "tpot_ms": 9}
    table = read_measurements(_written(tmp_path, [row]))

    assert (2.773, pytest.approx(9e-3 * 2.773)) == (table.measured[0].tokens_per_step, table.measured[0].step_seconds)
    assert any("also agree if the length does not count the target's own token" in note for note in table.notes)


@pytest.mark.parametrize(
    ("length", "tokens", "note"),
    [
        (2.5, 2.5, None),
        (1.5, 2.5, "1 was added for the target's own"),
        (1.875, 1.875, "acceptance_rate is an acceptance rate per token, by the acceptance length"),
        (3.4, 3.4, "acceptance_rate and the acceptance length disagree; the length was used"),
    ],
)
def test_two_acceptance_columns_explain_each_other(
    length: float, tokens: float, note: str | None, tmp_path: Path
) -> None:
    """The rate is 0.5 at draft length 3."""
    row = {"concurrency": 4, "k": 3, "acceptance_rate": 0.5, "mean_acceptance_length": length, "tpot_ms": 10}
    table = read_measurements(_written(tmp_path, [row]))

    assert tokens == table.measured[0].tokens_per_step
    assert len(table.notes) == 1 + (note is not None)
    assert note is None or note in table.notes[1]


def test_below_the_lightest_load_costs_go_on_in_a_straight_line(tmp_path: Path) -> None:
    """Fitted to 8, 64 and 256 requests, one request was 37 and 39% off; and it is said that nothing was measured there."""
    found = _fitted(tmp_path, _sweep(gpu, (8, 64, 256)))

    assert _error(found, gpu, (1,)) < 0.1
    assert (False, True, True, False) == tuple(found.covers(batch, 3, 100) for batch in (7, 8, 256, 257))


def test_steps_never_cost_less_than_their_share_below_the_lightest_load(tmp_path: Path) -> None:
    """Steps that grow with the load would go to 0 in a straight line before one request."""
    found = _fitted(tmp_path, _sweep(lambda batch, gamma: 1e-4 * (batch * (gamma + 1)) ** 1.2, (32, 64, 128, 256)))
    lightest = found.step_seconds(32, np.arange(6))

    assert (found.step_seconds(1, np.arange(6)) >= lightest / 32 * (1 - 1e-9)).all()


def _medians(batch: float, gamma: int) -> float:
    """Medians lie a tenth below means without drafts and a fifth at the longest."""
    return straight(batch, gamma) * (0.9 - 0.02 * gamma)


def test_a_step_is_read_from_the_time_between_chunks(tmp_path: Path) -> None:
    """`mean_itl_ms` of vLLM is a step; a median time per token times mean tokens per step is not."""
    rows = _sweep(_medians, mean_itl_ms=lambda *place: 1e3 * straight(*place))
    for row in rows:
        row["median_tpot_ms"] = row.pop("mean_tpot_ms")

    assert _error(_fitted(tmp_path, rows), straight, LOADS) < 0.001


def test_a_time_between_chunks_may_be_per_token(tmp_path: Path) -> None:
    """As the time per token beside it shows."""
    rows = _sweep(straight, itl_ms=lambda batch, gamma: 1e3 * straight(batch, gamma) / LENGTHS[gamma])

    assert _error(_fitted(tmp_path, rows), straight, LOADS) < 0.001


def test_a_median_gives_way_to_throughput(tmp_path: Path) -> None:
    """With `running`, requests / throughput is the mean time per token; the note says so."""
    rows = _sweep(
        _medians,
        running=lambda batch, _: batch,
        output_tok_s=lambda batch, gamma: batch * LENGTHS[gamma] / straight(batch, gamma),
    )
    for row in rows:
        row["tpot_p50_ms"] = row.pop("mean_tpot_ms")
    table = read_measurements(_written(tmp_path, rows))

    assert _error(fit_measurements(table.measured), straight, LOADS) < 0.001
    assert any("because the time per token is a median" in note for note in table.notes)
    alone = [{name: row[name] for name in row if name not in ("running", "output_tok_s")} for row in rows]
    notes = read_measurements(_written(tmp_path, alone)).notes
    assert any("the time per token is a median, so" in note and "(15 of 20 rows)" in note for note in notes)


def test_the_batch_of_a_full_server_is_what_ran(tmp_path: Path) -> None:
    """A server for 64 requests, asked for 256: by Little's law 64 ran."""

    def limited(batch: float, gamma: int) -> float:
        return straight(min(batch, 64), gamma)

    rows = _sweep(limited, output_tok_s=lambda batch, gamma: min(batch, 64) * LENGTHS[gamma] / limited(batch, gamma))
    table = read_measurements(_written(tmp_path, rows))

    assert pytest.approx(64) == max(one.requests for one in table.measured)
    assert any("the server was full" in note and "(4 of 20 rows)" in note for note in table.notes)
    assert _error(fit_measurements(table.measured), straight, (1, 4, 16, 64)) < 0.001


def test_a_throughput_in_another_unit_does_not_change_the_batch(tmp_path: Path) -> None:
    """Requests per second times the time per token is a small share of the concurrency at every load."""
    rows = _sweep(straight, throughput=lambda batch, gamma: batch * LENGTHS[gamma] / straight(batch, gamma) / OUTPUT)

    assert set(LOADS) == {one.requests for one in read_measurements(_written(tmp_path, rows)).measured}


def test_schedules_have_few_stretches(tmp_path: Path) -> None:
    """At most 8 from 1 to 256 requests and at most 1% slower than the finest, which changed to and fro 43 times."""
    random = np.random.default_rng(0)

    def noisy(batch: float, gamma: int) -> float:
        return gpu(batch, gamma) * random.uniform(0.99, 1.01)

    found = _fitted(tmp_path, _sweep(noisy, (1, 2, 4, 8, 16, 32, 64, 128, 256)))
    workload = measured_acceptance_workload(found.tokens_by_gamma, 128, 128, found.max_gamma)
    seconds_GN = request_seconds(workload.rounds_G, found.steps(256, 128))
    lengths_N = draft_lengths(workload.rounds_G, found.steps(256, 128))

    assert len(batch_ranges(lengths_N)) <= 8
    assert (seconds_GN[lengths_N, np.arange(256)] <= 1.01 * seconds_GN.min(0)).all()


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_a_schedule_is_the_cheapest_of_those_with_as_few_stretches(noise: float) -> None:
    """Against every schedule of small tables; with much noise more loss is allowed until 8 stretches are enough."""
    random = np.random.default_rng(1)
    for _ in range(20):
        loss_GN = 1 + random.uniform(0, noise, (3, 6)) + np.abs(np.arange(3)[:, None] - np.linspace(2.2, 0.2, 6)) * 0.02
        found = draft_lengths(np.ones(3), loss_GN)
        relative_GN = loss_GN / loss_GN.min(0) - 1
        each = np.arange(6)
        within = [one for one in product(range(3), repeat=6) if (relative_GN[list(one), each] <= 0.01).all()]
        fewest = min(len(batch_ranges(one)) for one in within)
        best = min(relative_GN[list(one), each].sum() for one in within if len(batch_ranges(one)) == fewest)

        assert fewest == len(batch_ranges(found))
        assert pytest.approx(best, abs=1e-12) == relative_GN[found, each].sum()


def test_too_many_stretches_are_joined_at_a_loss() -> None:
    """Every second batch size is faster with draft length 1, by 5%."""
    step_GN = np.array([[1.0, 1.05] * 20, [1.05, 1.0] * 20])

    assert 1 == len(batch_ranges(draft_lengths(np.ones(2), step_GN)))


def test_measured_acceptance_falls_with_the_draft_length(tmp_path: Path) -> None:
    """Rounds are those of the measured tokens per step; one acceptance rate from the shortest length overrates the longest."""
    found = _fitted(tmp_path, _sweep(straight))
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 300, 5)
    same = constant_acceptance_workload(0.7, 100, 300, 5)

    assert pytest.approx({1: 1.7, 3: 2.5, 5: 2.8}, rel=0.01) == {g: 300 / workload.rounds_G[g] for g in (1, 3, 5)}
    assert 2.17 == pytest.approx(300 / workload.rounds_G[2], rel=0.01)  # 1 + a + a^2 at a rate between 0.7 and 0.69
    assert same.rounds_G[5] < 0.97 * workload.rounds_G[5]
    assert (True, False, True) == tuple(found.measured(gamma) for gamma in (1, 2, 3))


@pytest.mark.parametrize("power", [1.2, 1.8])
def test_plain_steps_that_were_measured_at_heavy_loads_only_stay_above_zero(power: float, tmp_path: Path) -> None:
    """A straight line from 16 requests down goes below 0; nothing below 16 counts as measured."""

    def step(batch: float, gamma: int) -> float:
        return float(1e-3 * (batch * (gamma + 1)) ** power + 1e-4 * gamma * batch)

    found = _fitted(tmp_path, [*_sweep(step, (16, 32, 64), (0,)), *_sweep(step, (1, 2, 4, 8, 16), (3, 5))])

    assert (found.steps(64, 100) > 0).all()
    assert found.step_seconds(1, 0) >= found.step_seconds(16, 0) / 16 * (1 - 1e-9)
    assert (False, True) == (found.covers(15, 0, 100), found.covers(16, 0, 100))


def test_a_wider_batch_may_be_cheaper(tmp_path: Path) -> None:
    """Up to 8 tokens another kernel runs: 9 tokens cost less than 8."""

    def kernels(batch: float, gamma: int) -> float:
        return straight(batch, gamma) + 0.008 * (batch * (gamma + 1) <= 8)

    found = _fitted(tmp_path, _sweep(kernels, (1, 2, 3, 4, 6, 8, 12, 16)))

    assert found.step_seconds(12, 0) < 0.85 * found.step_seconds(8, 0)
    assert _error(found, kernels, (1, 2, 3, 4, 6, 8, 12, 16)) < 0.03
    assert found == fitted_costs_from_json(json.loads(json.dumps(found.json())), "costs.json")


def test_draft_lengths_are_bounded(tmp_path: Path) -> None:
    """In a table, in a costs file and in a profile: a schedule tries every length up to the longest."""
    path = tmp_path / "sweep.csv"
    for gamma in (129, 10**9):
        path.write_text(f"concurrency,k,tpot_ms,mean_acceptance_length\n1,{gamma},10,2\n")
        with pytest.raises(
            UsageError, match=r"draft length .* whole number from 0 to 128 \(a schedule tries every length"
        ):
            read_measurements(path)
    whole = _fitted(tmp_path, _sweep(straight)).json()
    free = {**whole["costs"], "coefficients": {name: [0.0, 0.0, 0.0] for name in whole["costs"]["coefficients"]}}
    for bad in (
        {"most_gamma": 129},
        {"most_requests": 10**9},
        {"least_requests": 300},
        {"costs": free, "piecewise": None},  # steps of 0 s
    ):
        with pytest.raises(UsageError, match=r"costs\.json: invalid costs file"):
            fitted_costs_from_json(whole | bad, "costs.json")
    surface = {"batches": [1], "tokens": [1, 130], "contexts": [8], "seconds": [[[0.1], [0.2]]]}
    (tmp_path / "profile.json").write_text(
        json.dumps({"schema": 1, "about": {}, "target": surface, "draft": surface, "prefill": surface})
    )
    with pytest.raises(UsageError, match="target: tokens may be at most 129"):
        read_step_costs(tmp_path / "profile.json")


def test_output_lengths_are_a_distribution(tmp_path: Path) -> None:
    """One number, a mean and a cap, a column of a table, the lengths of a detailed result."""
    table, result = tmp_path / "lengths.csv", tmp_path / "result.jsonl"
    table.write_text("id,output_tokens\na,10\nb,30\n")
    result.write_text('{"output_lens": [5, 0, 7]}\n{"completed": 3}\n{"output_lens": [9]}\n')
    long = tmp_path / "long.csv"
    long.write_text("tokens\n" + "\n".join(map(str, range(2, 10_002))))
    drawn, capped = parse_output_lengths("300:1024"), parse_output_lengths("1020:1024")

    assert [200] == parse_output_lengths("200").tolist()
    assert [10, 30] == parse_output_lengths(str(table)).tolist()
    assert [5, 7, 9] == parse_output_lengths(str(result)).tolist()  # 0: a request that failed
    assert pytest.approx(5001, rel=0.01) == parse_output_lengths(str(long)).mean()
    assert (200, 1024) == (len(drawn), drawn.max())
    assert pytest.approx(300, abs=1) == drawn.mean()
    assert drawn.std() > 200
    assert pytest.approx(1020, abs=3) == capped.mean()


def test_latencies_of_a_result_tell_its_output_lengths(tmp_path: Path) -> None:
    """Outputs of 2 to 400 tokens at 10 ms each, and of an exponential distribution; the time to first token is no part of them. A
    heavier load, whose latencies vary more, is not used. Quantiles between known ones are off by less than a tenth."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    heavier = {"completed": 5, "total_output_tokens": 5000, "mean_e2el_ms": 9e9, "p99_e2el_ms": 9e12}
    for mean, length in ((201.0, lambda q: 2 + 398 * q), (300.0, lambda q: -300 * np.log1p(-q))):
        percentiles = {f"{name}_e2el_ms": 500 + 10 * float(length(q)) for name, q in quantiles.items()}
        of_mean = {
            "mean_ttft_ms": 500,
            "mean_e2el_ms": 500 + 10 * mean,
            "completed": 9,
            "total_output_tokens": 9 * mean,
        }
        (tmp_path / "one.json").write_text(json.dumps([heavier, of_mean | percentiles]))
        found = parse_output_lengths(str(tmp_path / "one.json"))

        assert pytest.approx(mean, rel=0.02) == found.mean()
        for q in (0.5, 0.8, 0.9, 0.95):
            assert pytest.approx(length(q), rel=0.1) == np.quantile(found, q)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1", "whole numbers from 2 to 32,768"),
        ("2.5", "whole numbers from 2"),
        ("40000", "whole numbers from 2"),
        ("300:200", "the mean must be below the cap"),
        ("gone.csv", "no such file, and not a number; give a number, MEAN:CAP, or a file"),
        (
            "{place}/other.csv",
            "no column of output lengths; name it tokens, output_tokens, output_len, ",
        ),
        ("{place}/words.csv", "a length is not a number"),
        ("{place}/empty.csv", "no column of output lengths"),
        ("{place}/huge.csv", "give lengths from 2 to 32,768 tokens"),
        (
            "{place}/result.json",
            "no output_lens, and no percentiles of the latency; run `vllm bench serve` with --save-result and",
        ),
    ],
)
def test_output_lengths_that_cannot_be_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    """With what to give instead."""
    files = {
        "other.csv": "id\na\n",
        "words.csv": "tokens\nmany\n",
        "empty.csv": "",
        "huge.csv": "tokens\n1e9\n",
        "result.json": "{}",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        parse_output_lengths(text.format(place=tmp_path))

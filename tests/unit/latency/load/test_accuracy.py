"""The error of fitted step times stands beside every figure that is computed from them."""

import json
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from pipeline.commands.tables.latency_predict import above_measured, near_capacity, prediction_json, print_prediction
from pipeline.commands.tables.latency_schedule import print_schedule, said_of_accuracy, schedule_json
from pipeline.latency.costs.accuracy import MEASURED, StepAccuracy
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.load.prediction import Prediction, predict
from pipeline.latency.load.schedule import DraftOption, make_schedule
from pipeline.latency.load.workload import Workload, measured_acceptance_workload

TOKENS = 100
LENGTHS_N = np.full(32, 3)


@cache
def _fitted(noise: float, loads: tuple[int, ...] = (1, 4, 16, 32)) -> tuple[FittedCosts, Workload]:
    random = np.random.default_rng(0)
    measured = [
        Measurement(
            where="here",
            requests=load,
            gamma=gamma,
            tokens_per_step=1 + 0.5 * gamma,
            step_seconds=(0.02 + 0.001 * load) * (1 + 0.1 * gamma) * float(random.lognormal(0, noise)),
        )
        for load, gamma in product(loads, (0, 3))
    ]
    found = fit_measurements(measured)
    return found, measured_acceptance_workload(found.tokens_by_gamma, 100, TOKENS, 3)


def _predicted(found: FittedCosts, workload: Workload) -> Prediction:
    return predict(workload, found, LENGTHS_N, [0.5, 1.0], replicas=2)


def test_a_prediction_has_the_left_out_error_beside_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Costs that are half off printed the same as costs that are 0% off. A capacity is at the heaviest load."""
    found, workload = _fitted(0.8)
    edge = found.accuracy_at(3, 32)
    figures = prediction_json(_predicted(found, workload), [0.95])
    print_prediction(_predicted(found, workload), [0.95], LENGTHS_N, TOKENS, [])
    lines = capsys.readouterr().out.splitlines()
    rows, (capacity,) = ([line for line in lines if line.startswith(start)] for start in ("│", "capacity"))

    assert found.accuracy.left_out is not None
    assert edge.left_out is not None
    assert edge.edge
    assert 0.3 < found.accuracy.left_out <= edge.left_out
    assert [True, True] == [found.accuracy.short in line for line in rows]
    assert f"{edge.left_out:.1%} off at the edge" in capacity
    assert [edge.left_out, *[found.accuracy.left_out] * 2] == [
        one["accuracy"]["left_out_error"] for one in (figures, *figures["points"])
    ]
    assert "0.0%" == _fitted(0.0)[0].accuracy.short


def test_a_schedule_has_the_left_out_error_beside_its_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    """In each row, in JSON for each batch size, and in a sentence; of the draft that is best."""
    accuracy = StepAccuracy(0.59)
    step_GN = np.array([[1.0, 1.0], [1.2, 3.0]])
    found = make_schedule([DraftOption("draft", np.array([100.0, 60.0]), step_GN, accuracy)])
    print_schedule(found, said_of_accuracy(found))
    out = capsys.readouterr().out

    error = {"step_times": "fitted", "left_out_error": 0.59, "edge": False, "tokens_per_step_error": 0.0}
    assert [error] * 2 == schedule_json(found)["accuracy"]
    assert 2 == sum("59.0%" in line for line in out.splitlines() if line.startswith("│"))
    assert "batch size 1 (batch cap: 2; step times 59.0% off on left-out points)" in " ".join(out.split())
    assert "a speedup up to 3.88 can be a slowdown: so at batch size 1 a draft is not known to be faster" in " ".join(
        out.split()
    )


@pytest.mark.parametrize(
    ("left_out", "tokens", "said"),
    [
        (0.1, 0.0, "a speedup up to 1.22 can be a slowdown"),  # 1.1 / 0.9; the draft's speedup is 1.39
        (0.1, 0.2, "a speedup up to 1.47 can be a slowdown: so at batch size 1 a draft is not known to be faster"),
        (1.0, 0.0, "any speedup can be a slowdown: so at batch size 1 a draft is not known to be faster"),
    ],
)
def test_the_error_of_a_speedup_is_that_of_two_steps(left_out: float, tokens: float, said: str) -> None:
    """One too fast, one too slow, and too many tokens per step; batch size 2 has no draft."""
    step_GN = np.array([[1.0, 1.0], [1.2, 3.0]])
    accuracy = StepAccuracy(left_out, tokens=tokens)
    (found,) = said_of_accuracy(make_schedule([DraftOption("draft", np.array([100.0, 60.0]), step_GN, accuracy)]))

    assert found.endswith(said)


def test_tokens_per_step_of_two_datasets_count_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Their steps are equal, so "0.0% off" was said of a capacity that no dataset has."""
    measured = [
        Measurement(
            where="here", requests=load, gamma=gamma, tokens_per_step=1 + gamma * rate, step_seconds=0.02 + load / 1e3
        )
        for load, gamma, rate in product((1, 8, 32), (0, 3), (0.2, 0.8))
    ]
    found = fit_measurements(measured)
    workload = replace(
        measured_acceptance_workload(found.tokens_by_gamma, 100, TOKENS, 3), tokens_error=found.tokens_error
    )
    figures = _predicted(found, workload)
    print_prediction(figures, [0.95], LENGTHS_N, TOKENS, [])
    out = " ".join(capsys.readouterr().out.split())

    # 1.6 or 3.4 tokens per step, of which the five others have a mean of 2.68 or 2.32
    assert pytest.approx((2.68 / 1.6 - 1 + 1 - 2.32 / 3.4) / 2) == found.tokens_error
    assert pytest.approx(0, abs=1e-9) == found.accuracy.left_out
    assert (2, 2) == (out.count("tokens 50%"), out.count("tokens per step 49.6% off"))
    assert found == fitted_costs_from_json(json.loads(json.dumps(found.json())), "costs.json")
    assert 0.0 == _fitted(0.0)[0].tokens_error
    assert "tokens" not in StepAccuracy(0.1, tokens=0.004).said + StepAccuracy(0.1, tokens=0.004).short


def test_a_load_within_the_error_of_the_capacity_is_said() -> None:
    """ "plain 3.57 s" was said at 99% of a capacity that is 5% off. Plain decoding has no tokens to accept."""
    found, workload = _fitted(0.0)
    limits = predict(workload, found, LENGTHS_N, [1.0])
    rates = [0.97 * limits.plain_limit, 0.97 * limits.speculative_limit]

    def unstable(left_out: float, tokens: float = 0.0) -> list[str]:
        at = predict(workload, found, LENGTHS_N, rates)
        plain, drafted = StepAccuracy(left_out), StepAccuracy(left_out, tokens=tokens)
        return [line.split(" may")[0] for line in near_capacity(replace(at, plain_accuracy=plain, accuracy=drafted))]

    assert [] == unstable(0.01)
    assert ["note: plain decoding", "note: speculation"] == unstable(0.05)
    assert ["note: speculation"] == unstable(0.01, 0.05)
    assert [] == near_capacity(replace(limits, plain_accuracy=MEASURED, accuracy=MEASURED))


def test_a_profile_and_too_few_points_have_no_error() -> None:
    """A profile is measured; of a fit without left-out points the error is unknown, in its file too."""
    few = fit_measurements(_measured_few())
    again = fitted_costs_from_json(json.loads(json.dumps(few.json())), "costs.json")
    profiled, unknown = (
        make_schedule([DraftOption("draft", np.array([2.0, 1.0]), np.ones((2, 1)), one)])
        for one in (MEASURED, few.accuracy)
    )

    assert few == again
    assert ("measured", "unknown") == (MEASURED.short, few.accuracy.short)
    assert [] == said_of_accuracy(profiled)
    assert ["unknown" in line for line in said_of_accuracy(unknown)] == [True]


def _measured_few() -> list[Measurement]:
    return [
        Measurement(where="here", requests=load, gamma=gamma, tokens_per_step=1.0, step_seconds=0.02 + 0.001 * load)
        for load, gamma in product((1, 8), (0, 3))
    ]


def test_a_capacity_above_the_measured_throughput_is_said() -> None:
    """Both in the same unit, over all replicas; not said where the measurements show it."""
    found, workload = _fitted(0.0)
    assert found.max_throughput is not None
    plain, of_all = found.max_throughput
    low = replace(found, max_throughput=(plain / 2, of_all / 2))
    unknown = replace(found, max_throughput=None)

    assert pytest.approx((32 / 0.052, 32 * 2.5 / 0.0676)) == (plain, of_all)
    assert [] == above_measured(_predicted(found, workload), TOKENS)
    assert [] == above_measured(_predicted(unknown, workload), TOKENS)
    said = above_measured(_predicted(low, workload), TOKENS)
    assert [("plain decoding", True), ("speculation", True)] == [
        (what, f"with {what}" in line and "above the largest throughput" in line)
        for what, line in zip(("plain decoding", "speculation"), said, strict=True)
    ]
    assert pytest.approx(2 * of_all / 2 / TOKENS) == prediction_json(_predicted(low, workload), [0.95])["measured"]


def test_the_error_is_that_of_the_model_that_is_used() -> None:
    """A step with a kink, which the linear model describes worse."""
    measured = [
        Measurement(
            where="here",
            requests=load,
            gamma=gamma,
            tokens_per_step=1.0 + gamma / 2,
            step_seconds=0.02 + 0.0005 * max(0, load * (gamma + 1) - 64),
            throughput=1000.0 + load if gamma else 10.0,
        )
        for load, gamma in product((1, 4, 16, 32, 64, 128), (0, 3))
    ]
    found = fit_measurements(measured)

    assert found.leave_one_out is not None
    assert found.leave_one_out.chosen == found.accuracy.left_out < 0.5 * found.leave_one_out.linear
    assert (10.0, 1128.0) == found.max_throughput  # as the table has it, and not from the steps


def test_of_several_drafts_the_error_is_that_of_the_winner() -> None:
    """The first draft wins at batch size 1, the second at 2."""
    exact, rough = StepAccuracy(0.01), StepAccuracy(0.4)
    found = make_schedule(
        [
            DraftOption("first", np.array([100.0, 60.0]), np.array([[1.0, 1.0], [1.0, 3.0]]), exact),
            DraftOption("second", np.array([100.0, 60.0]), np.array([[1.0, 1.0], [3.0, 1.0]]), rough),
        ]
    )

    assert [("first", exact), ("second", rough)] == list(zip(found.winner_N, found.accuracy_N, strict=True))


@pytest.mark.parametrize(("by", "said"), [(1.01, 0), (1.04, 2)])
def test_how_far_a_capacity_may_be_above_what_was_measured(by: float, said: int) -> None:
    """2%: the first token of a request comes from its prefill."""
    found, workload = _fitted(0.0)
    figures = _predicted(found, workload)
    measured = replace(figures, plain_measured=figures.plain_limit / by, measured=figures.speculative_limit / by)

    assert said == len(above_measured(measured, TOKENS))


def test_lengths_that_the_error_at_the_edge_leaves_open_are_no_choice() -> None:
    """At batch size 2 length 2 is 5% slower than length 1, and plain decoding 40%; the error is 10%. Inside it is a choice."""
    step_GN = np.array([[1.4, 1.4], [2.0, 2.0], [2.1, 2.1], [2.05, 2.05]])

    def accuracy_at(gamma: int, batch: int) -> StepAccuracy:
        return StepAccuracy(0.1, edge=True) if batch == 2 else StepAccuracy(0.01)

    option = DraftOption(
        "draft", np.array([1.0, 0.5, 0.5, 0.5]), step_GN, StepAccuracy(0.01), frozenset({3}), accuracy_at=accuracy_at
    )
    found = make_schedule([option])

    assert [(), (1, 2)] == found.open_N
    assert [[], [1, 2]] == schedule_json(found)["no_choice"]
    assert said_of_accuracy(found)[1].startswith("no choice at batch size 2: draft lengths 1, 2 differ by less than")
    assert [()] * 2 == make_schedule([replace(option, accuracy_at=None)]).open_N


def test_of_two_steps_the_worse_one_counts() -> None:
    """An unknown error is the worst, and tokens per step count."""
    low, high, tokens, unknown = StepAccuracy(0.01), StepAccuracy(0.05), StepAccuracy(0.01, tokens=0.2), StepAccuracy()

    assert [high, tokens, unknown] == [low.or_worse(high), high.or_worse(tokens), unknown.or_worse(tokens)]
    assert low == MEASURED.or_worse(low)

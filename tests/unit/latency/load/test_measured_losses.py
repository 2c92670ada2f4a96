"""A schedule beside the measurements that its costs were fitted to: no draft length is recommended where it lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.accuracy import StepAccuracy
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts, fitted_costs_from_json
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.costs.server_facts import Cell
from pipeline.latency.load.measured_losses import Loss, measured_losses, said_of_losses
from pipeline.latency.load.prediction import chosen_lengths, draft_option
from pipeline.latency.load.schedule import batch_ranges, draft_lengths, make_schedule
from pipeline.latency.load.workload import constant_acceptance_workload, measured_acceptance_workload

LOADS, LENGTHS = (1, 2, 4, 8, 16, 32), {0: 1.0, 2: 1.9, 4: 2.5}


@cache
def _fitted(factor: Callable[[int, int], float], repeats: tuple[float, ...] = (1.0,)) -> FittedCosts:
    """Linear steps, but for `factor` at a load and draft length."""
    return fit_measurements(
        [
            Measurement(
                where=f"{load}, {gamma}",
                requests=float(load),
                gamma=gamma,
                tokens_per_step=tokens,
                step_seconds=(0.02 + 0.002 * gamma + load * (2e-4 + 4e-5 * gamma)) * factor(load, gamma) * repeat,
            )
            for load, (gamma, tokens), repeat in product(LOADS, LENGTHS.items(), repeats)
        ]
    )


def _lengths(found: FittedCosts) -> list[int]:
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 256, 4)
    lengths_N: list[int] = chosen_lengths(replace(workload, of_measurements=True), found, 32).tolist()
    return lengths_N


def _slow_at_8(load: int, gamma: int) -> float:
    """At 8 requests drafts take three times as long: one load of six, which a fit smooths over."""
    return 3.0 if load == 8 and gamma else 1.0


def test_a_length_that_lost_is_not_recommended_there() -> None:
    """Drafts are twice as fast as plain decoding, but for one load, at which the fit recommended them too."""
    found = _fitted(_slow_at_8)
    lengths = _lengths(found)

    assert 0 < _lengths(replace(found, cells=()))[7]
    assert 0 == lengths[7]
    assert {4} == {lengths[load - 1] for load in LOADS if load != 8}


def test_the_faster_of_two_measured_drafts_is_recommended() -> None:
    """By 15% at 16 requests alone."""
    found = _fitted(lambda load, gamma: 1.3 if (load, gamma) == (16, 4) else 1.0)

    assert 2 == _lengths(found)[15]


def test_repeats_that_differ_as_much_leave_it_to_the_fit() -> None:
    """Drafts that are 15% slower at a load with repeats 40% apart may be noise."""

    def factor(load: int, gamma: int) -> float:
        return 2.3 if load == 8 and gamma else 1.0

    assert 0 == _lengths(_fitted(factor))[7]
    assert 0 < _lengths(_fitted(factor, (0.8, 1.2)))[7]


def test_the_loss_is_said() -> None:
    """With how much it was, for each length; and the lengths are in the option of a schedule."""
    found = _fitted(_slow_at_8)
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 256, 4)
    option = draft_option("draft", replace(workload, of_measurements=True), found, 32)
    assert option.losses is not None

    assert 0 == make_schedule([option]).lengths_N[7]
    assert [(2, 8.0), (4, 8.0)] == [(one.gamma, one.requests) for one in option.losses.to_plain]
    (said,) = said_of_losses([Loss(3, 8.0, 0.2), Loss(3, 16.0, 0.05)])
    assert said.startswith("measured: draft length 3 was slower than plain decoding at 8 (by 20%), 16 (by 5%) requests")


def test_an_examination_judges_by_its_own_acceptance() -> None:
    """The measured draft was bad; the one that was examined is not."""
    cells = [Cell(0, 4.0, 4.0, 0.020, 1.0), Cell(3, 4.0, 4.0, 0.030, 1.2)]
    good = constant_acceptance_workload(0.9, 100, 256, 3)

    assert measured_losses(cells, None, 3, 4).lost_GN[3].all()
    assert not measured_losses(cells, good.rounds_G, 3, 4).lost_GN[3].any()


def test_between_two_loads_both_must_have_lost() -> None:
    """At 4 and 8 requests length 1 lost, at 16 it won; length 2 was not measured. Beyond the last load only a loss to plain
    decoding counts."""
    lost_GN = measured_losses(
        [
            *(Cell(0, load, load, 0.02, 1.0) for load in (4.0, 8.0, 16.0)),
            *(Cell(1, load, load, step, 1.5) for load, step in ((4.0, 0.04), (8.0, 0.04), (16.0, 0.02))),
            *(Cell(3, load, load, step, 2.0) for load, step in ((4.0, 0.05), (8.0, 0.05), (16.0, 0.05))),
        ],
        None,
        3,
        20,
    ).lost_GN

    assert [*range(1, 9)] == (np.flatnonzero(lost_GN[1]) + 1).tolist()
    assert [*range(1, 21)] == (np.flatnonzero(lost_GN[3]) + 1).tolist()
    assert (lost_GN[2] == (lost_GN[1] | lost_GN[3])).all()


def test_losses_may_need_more_ranges() -> None:
    """Of 20 batch sizes every second one lost: more than 8 ranges, and none of them with a length that lost."""
    lost_GN = np.zeros((2, 20), dtype=bool)
    lost_GN[1, ::2] = lost_GN[0, 1::2] = True
    lengths_N = draft_lengths(np.ones(2), np.ones((2, 20)), lost_GN)

    assert [0, 1] * 10 == lengths_N.tolist()
    assert 20 == len(batch_ranges(lengths_N))


def test_cells_survive_their_file_and_older_files_have_none() -> None:
    """Costs of the schema before are read on."""
    found = _fitted(_slow_at_8, (0.99, 1.0))
    raw: Any = json.loads(json.dumps(found.json()))
    old = {**raw, "schema": 5}
    del old["cells"]

    assert found == fitted_costs_from_json(raw, "costs.json")
    assert 18 == len(found.cells)
    assert () == fitted_costs_from_json(old, "costs.json").cells
    with pytest.raises(UsageError, match="a measured cell has a number that is not above 0"):
        fitted_costs_from_json({**raw, "cells": [[0, 1.0, 1.0, 0.0, 1.0, None]]}, "costs.json")


def test_a_step_may_take_longer_from_a_number_of_tokens_on() -> None:
    """2.2 times from 17 tokens on, as another kernel may: the piecewise costs without it were 16% off on such a sweep."""

    def step(load: int, gamma: int) -> float:
        return 2.2 if load * (gamma + 1) > 16 else 1.0

    found = _fitted(step)

    assert found.piecewise is not None
    assert (16.0,) == found.piecewise.terms.rises
    assert found.leave_one_out is not None
    assert found.leave_one_out.chosen < 0.06
    assert found.step_seconds(20, 0) > 1.8 * found.step_seconds(16, 0)
    assert found == fitted_costs_from_json(json.loads(json.dumps(found.json())), "costs.json")


@pytest.mark.parametrize("further", [(), (64.0,)])
def test_drafts_at_one_load_are_not_ranked_at_others(further: tuple[float, ...]) -> None:
    """Of 16 requests, with plain decoding at others too: 7 lost there, and extrapolated costs recommended it below. Plain
    decoding and what did not lose are left to the costs."""
    cells = [Cell(0, load, load, 0.02, 1.0) for load in (16.0, *further)]
    cells += [Cell(gamma, 16.0, 16.0, step, 2.0) for gamma, step in ((1, 0.0282), (3, 0.028), (7, 0.032))]
    lost_GN = measured_losses(cells, None, 7, 64).lost_GN

    assert lost_GN[7].all()
    assert not lost_GN[[1, 3]].any()
    assert [15] == np.flatnonzero(lost_GN[0]).tolist()


@pytest.mark.parametrize(("gain", "chosen"), [(0.99, 2), (0.975, 2), (0.8, 3)])
def test_an_unmeasured_length_is_chosen_only_beyond_the_error(gain: float, chosen: int) -> None:
    """Lengths 2 and 4 were measured, with step times 1% off and 1% of tokens; 3 lies between them. Below 2 is nothing."""
    step_GN = np.array([[9.0], [1.5], [2.0], [2.0 * gain], [2.4]])
    costs = SimpleNamespace(
        cells=(), load=None, plain=False, acceptance_known=True, max_gamma=4, measured=lambda gamma: gamma in (2, 4),
        steps=lambda *_: step_GN, accuracy=StepAccuracy(0.01), accuracy_at=lambda *_: StepAccuracy(0.01),
    )  # fmt: skip
    workload = SimpleNamespace(rounds_G=np.ones(5), context=100.0, max_gamma=4, tokens_error=0.01, of_measurements=True)

    def length(**other: Any) -> int:
        return int(chosen_lengths(cast("Any", workload), cast("Any", SimpleNamespace(**(vars(costs) | other))), 1)[0])

    cells = [Cell(gamma, 1.0, 1.0, 2.0, 1.0) for gamma in (2, 4)]
    assert chosen == length(cells=cells)
    assert 2 == length(cells=cells, acceptance_known=False)

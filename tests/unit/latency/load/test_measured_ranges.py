"""Draft lengths that were measured at fewer loads than others."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from pipeline.commands.latency.options import notes_on
from pipeline.commands.tables.latency_fit import print_costs
from pipeline.commands.tables.latency_predict import prediction_json, print_prediction
from pipeline.commands.tables.latency_schedule import print_schedule, schedule_json
from pipeline.latency.costs.accuracy import MEASURED
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.fitted import FittedCosts
from pipeline.latency.costs.measurements import Measurement
from pipeline.latency.load.prediction import predict
from pipeline.latency.load.schedule import DraftOption, make_schedule
from pipeline.latency.load.workload import measured_acceptance_workload


@cache
def _fitted(*loads_by_gamma: tuple[int, tuple[int, ...]]) -> FittedCosts:
    places = [place for gamma, loads in loads_by_gamma for place in product(loads, (gamma,))]
    return fit_measurements(
        [
            Measurement(
                where="here",
                requests=load,
                gamma=gamma,
                tokens_per_step=1 + 0.4 * gamma,
                step_seconds=0.02 + 0.001 * load + 0.001 * gamma,
            )
            for load, gamma in places
        ]
    )


def _notes(found: FittedCosts, cap: int) -> list[str]:
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 100, found.max_gamma)
    return [note for note in notes_on(found, workload, cap) if "TTFT" not in note]


def test_a_draft_length_that_was_measured_at_light_loads_only_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Draft length 4 up to 8 requests, plain decoding up to 128: a schedule to 128 said nothing."""
    found = _fitted((0, (1, 8, 32, 128)), (4, (1, 8)))
    print_costs(found, 6, None)

    assert {0: (1, 128), 4: (1, 8)} == found.measured_requests
    assert (True, False, True) == (found.covers(8, 4, 100), found.covers(9, 4, 100), found.covers(128, 0, 100))
    assert [
        "note: draft length 4 was measured at 1 to 8 requests only; times at other batch sizes are extrapolated"
    ] == (_notes(found, 128))
    assert [] == _notes(found, 8)
    out = " ".join(capsys.readouterr().out.split())
    assert "measured: 1 to 128 requests, draft lengths 0; 1 to 8 requests, draft lengths 4; predictions" in out


def test_what_was_measured_at_one_request_is_not_denied() -> None:
    """Draft length 4 lacks one request, and others have it: "nothing was measured below batch size 8" was said."""
    assert [
        "note: draft length 4 was measured at 8 to 32 requests only; times at other batch sizes are extrapolated"
    ] == (_notes(_fitted((0, (1, 8, 32)), (2, (1, 8, 32)), (4, (8, 32))), 32))
    (lightest,) = _notes(_fitted((0, (4, 8, 32)), (2, (4, 8, 32))), 32)
    assert "nothing was measured below batch size 4" in lightest


def test_a_length_outside_of_its_loads_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    """In the table and in JSON, by batch size."""
    option = DraftOption("draft", np.array([10.0, 5.0]), np.ones((2, 4)), MEASURED, ranges={0: (1, 4), 1: (2, 3)})
    found = make_schedule([option])
    print_schedule(found, [])

    assert [False, True, True, False] == schedule_json(found)["measured"]
    assert "1*" in capsys.readouterr().out
    assert [True] * 4 == make_schedule([DraftOption("draft", option.rounds_G, option.step_GN, MEASURED)]).measured_N


def test_a_load_beyond_the_measured_ones_is_extrapolated(capsys: pytest.CaptureFixture[str]) -> None:
    """ "0.0% off" stood beside a capacity at 8 times the largest measured batch. Draft length 4 was measured at up to 8."""
    found = _fitted((0, (1, 8, 32, 128)), (2, (1, 8, 32, 128)), (4, (1, 8)))
    workload = measured_acceptance_workload(found.tokens_by_gamma, 100, 100, found.max_gamma)

    def extrapolated(cap: int, gamma: int, share: float) -> tuple[bool, bool]:
        lengths_N = np.full(cap, gamma)
        limit = predict(workload, found, lengths_N, [1.0]).speculative_limit
        at = predict(workload, found, lengths_N, [share * limit])
        print_prediction(at, [0.95], lengths_N, 100, [])
        figures = prediction_json(at, [0.95])
        out = " ".join(capsys.readouterr().out.split())
        assert figures["extrapolated"] == ("(extrapolated: no batch as large was measured; at least: step times" in out)
        assert figures["points"][0]["extrapolated"] == ("* a mean batch is above the largest" in out)
        return figures["extrapolated"], figures["points"][0]["extrapolated"]

    assert (False, False) == extrapolated(128, 2, 0.9)
    assert (True, False) == extrapolated(512, 2, 0.1)
    assert (True, True) == extrapolated(512, 2, 0.9)
    assert (True, True) == extrapolated(128, 4, 0.9)
    assert (True, False) == extrapolated(128, 4, 0.01)


def test_draft_lengths_of_one_range_are_one_note() -> None:
    """At a batch cap above all measured loads; there was one line for each."""
    assert [
        "note: draft length 0, 2 was measured at 1 to 8 requests only; times at other batch sizes are extrapolated",
        "note: draft length 4 was measured at 1 to 32 requests only; times at other batch sizes are extrapolated",
    ] == _notes(_fitted((0, (1, 8)), (2, (1, 8)), (4, (1, 32))), 64)

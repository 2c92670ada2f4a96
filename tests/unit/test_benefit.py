"""What a draft buys, from forward times."""

import pytest

from pipeline.judgement.benefit import benefit_of_forward_times
from pipeline.judgement.schema import BASELINE, CANDIDATE, PLAIN
from tests.decisions import TIMES, make_decision


def test_a_machine_that_was_busy_in_one_examination_changes_nothing() -> None:
    """Times of the baseline's examination, ten times as long, give the same time per token: only ratios are used across them."""
    drafts = make_decision()["drafts"]
    slow = {**TIMES, "target": {"1": 0.02, "6": 0.03}, "draft": 0.002}
    even = benefit_of_forward_times({CANDIDATE: TIMES, BASELINE: TIMES}, drafts, 5)
    busy = benefit_of_forward_times({CANDIDATE: TIMES, BASELINE: slow}, drafts, 5)
    assert even is not None
    assert busy is not None
    assert even["sides"][BASELINE] == pytest.approx(busy["sides"][BASELINE])
    assert 2.0 == even["sides"][PLAIN]["ms_per_token"]
    # A round: 3 ms of the target and 5 drafts of 0.2 ms, over the tokens that a round yields.
    assert even["sides"][CANDIDATE]["ms_per_token"] == pytest.approx(
        4 / drafts[CANDIDATE]["mean_acceptance_length"]["5"]
    )

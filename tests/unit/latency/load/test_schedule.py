"""Draft lengths by load."""

import numpy as np
import pytest

from pipeline.commands.tables.latency_schedule import print_schedule
from pipeline.latency.costs.accuracy import MEASURED
from pipeline.latency.load.schedule import (
    DraftOption,
    Schedule,
    batch_ranges,
    break_even_acceptances,
    draft_lengths,
    for_tensorrt,
    for_vllm,
    largest_paying_batch,
    make_schedule,
    plain_spread,
    speedups,
)

ROUNDS_G = np.array([100.0, 60.0, 50.0])
STEP_GN = np.array(
    [[1.0, 1.0, 1.0, 1.0], [1.2, 1.3, 1.5, 1.7], [1.3, 1.7, 2.1, 2.5]]
)  # drafting grows dear with the batch


def test_each_batch_size_has_the_fastest_draft_length() -> None:
    """Rounds times seconds of a round: 65, 78, 90, 100 against 100 for plain decoding; a tie goes to the shorter."""
    assert [2, 1, 1, 0] == draft_lengths(ROUNDS_G, STEP_GN).tolist()


def test_speedup_is_over_plain_decoding_at_the_same_batch() -> None:
    """1 for plain decoding itself, below 1 where speculation loses."""
    found = speedups(ROUNDS_G, STEP_GN)

    np.testing.assert_allclose(found[0], 1.0)
    np.testing.assert_allclose(found[1], [100 / 72, 100 / 78, 100 / 90, 100 / 102])


def test_break_even_is_the_last_batch_that_pays() -> None:
    """Even where a smaller one does not; 0 where none does."""
    assert 3 == largest_paying_batch(draft_lengths(ROUNDS_G, STEP_GN))
    assert 4 == largest_paying_batch(np.array([0, 2, 0, 1, 0, 0]))
    assert 0 == largest_paying_batch(np.array([0, 0]))


def test_stretches_of_one_length() -> None:
    """First and last batch of each, both included."""
    assert [(1, 1, 2), (2, 3, 1), (4, 4, 0)] == batch_ranges([2, 1, 1, 0])
    assert [(1, 3, 0)] == batch_ranges([0, 0, 0])


def test_vllm_reads_stretches() -> None:
    """And the longest of all, which it allocates for."""
    assert {
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 1, 2], [2, 3, 1], [4, 4, 0]],
    } == for_vllm([2, 1, 1, 0])


def test_one_draft_length_for_all_needs_no_schedule() -> None:
    """One number says it."""
    assert {"num_speculative_tokens": 3} == for_vllm([3, 3, 3])


def test_tensorrt_has_every_batch_size() -> None:
    """Whether it reads a size as the first or the last of its stretch."""
    assert {"max_draft_len": 2, "draft_len_schedule": {1: 2, 2: 1, 3: 1, 4: 0}} == for_tensorrt([2, 1, 1, 0])
    assert {1: 4, 2: 4, 3: 0} == for_tensorrt([2, 4, 0])[
        "draft_len_schedule"
    ]  # its validator asks for the longest at one


def test_break_even_is_what_the_cheapest_length_asks_for() -> None:
    """A step of one draft token that takes 1.2 of a plain one pays from 0.2 on; one of two at 2.5 never asks for less; a step
    that takes more than it can ever give never pays."""
    found = break_even_acceptances(np.array([[1.0, 1.0], [1.2, 2.5], [2.5, 3.5]]))

    assert pytest.approx(0.2, abs=1e-5) == found[0]
    assert np.inf == found[1]


def test_how_far_apart_plain_decoding_was_measured() -> None:
    """The largest relative difference, in either order; 0 for one draft."""
    rounds_G, drafted = np.array([100.0, 60.0]), np.array([1.1, 1.6])
    first = DraftOption("first", rounds_G, np.array([[1.0, 3.0], drafted]), MEASURED)
    second = DraftOption("second", rounds_G, np.array([[1.1, 2.0], drafted]), MEASURED)

    assert pytest.approx(0.5) == plain_spread([first, second]) == plain_spread([second, first])
    assert 0.0 == plain_spread([first])


def test_the_fastest_draft_wins() -> None:
    """The smaller one at batch size 1, the better one at 2, plain decoding at 3; each relative to its own plain decoding."""
    light = DraftOption("light", np.array([100.0, 60.0]), np.array([[1.0, 1.0, 1.0], [1.1, 1.6, 2.0]]), MEASURED)
    better = DraftOption("better", np.array([100.0, 55.0]), np.array([[2.0, 2.0, 2.0], [2.6, 2.8, 4.0]]), MEASURED)
    found = make_schedule([light, better])

    assert ["light", "better", None] == found.winner_N
    assert [1, 1, 0] == found.lengths_N.tolist()
    np.testing.assert_allclose(found.speedup_N, [100 / 66, 200 / 154, 1.0])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([2, 1, 1, 0], "speculation is faster at batch size 1 to 3 (batch cap: 4)"),
        ([0, 2, 0, 1], "speculation is faster at batch size 2, 4 (batch cap: 4)"),
        ([1, 1, 1, 1], "speculation is faster at batch size 1 to 4 (batch cap: 4)"),
        ([0, 0, 0, 0], "speculation is not faster at any batch size up to 4"),
    ],
)
def test_batch_sizes_that_pay_are_printed(
    lengths: list[int], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every range of them: with measured costs a batch size between two that pay may not pay."""
    ones_N = np.ones(4)
    print_schedule(Schedule([], [None] * 4, np.array(lengths), ones_N, ones_N, [MEASURED] * 4, [True] * 4), [])
    assert expected in capsys.readouterr().out

"""Draft lengths by load."""

import numpy as np

from pipeline.latency.schedule import best_lengths, for_vllm, last_paying, ranges, speedups

ROUNDS_G = np.array([100.0, 60.0, 50.0])
STEP_GN = np.array(
    [[1.0, 1.0, 1.0, 1.0], [1.2, 1.3, 1.5, 1.7], [1.3, 1.7, 2.1, 2.5]]
)  # drafting grows dear with the batch


def test_each_batch_has_the_length_that_answers_soonest() -> None:
    """Rounds times seconds of a round: 65, 78, 90, 100 against 100 for plain decoding; a tie goes to the shorter."""
    assert [2, 1, 1, 0] == best_lengths(ROUNDS_G, STEP_GN).tolist()


def test_speedup_is_over_plain_decoding_at_the_same_batch() -> None:
    """1 for plain decoding itself, below 1 where speculation loses."""
    found = speedups(ROUNDS_G, STEP_GN)

    np.testing.assert_allclose(found[0], 1.0)
    np.testing.assert_allclose(found[1], [100 / 72, 100 / 78, 100 / 90, 100 / 102])


def test_break_even_is_the_last_batch_that_pays() -> None:
    """Even where a smaller one does not; 0 where none does."""
    assert 3 == last_paying(best_lengths(ROUNDS_G, STEP_GN))
    assert 4 == last_paying(np.array([0, 2, 0, 1, 0, 0]))
    assert 0 == last_paying(np.array([0, 0]))


def test_stretches_of_one_length() -> None:
    """First and last batch of each, both included."""
    assert [(1, 1, 2), (2, 3, 1), (4, 4, 0)] == ranges([2, 1, 1, 0])
    assert [(1, 3, 0)] == ranges([0, 0, 0])


def test_vllm_reads_stretches() -> None:
    """And the longest of all, which it allocates for."""
    assert {
        "num_speculative_tokens": 2,
        "num_speculative_tokens_per_batch_size": [[1, 1, 2], [2, 3, 1], [4, 4, 0]],
    } == for_vllm([2, 1, 1, 0])

"""Second moments of the counts: against enumeration of all outcomes, and against simulation."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.acceptance.moments import round_moments, rounds_variance
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds

EVERY = pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)


def _walked(stands: tuple[bool, ...], length: int, gamma: int, convention: Convention) -> list[int]:
    """Rounds, drafted tokens, accepted tokens, and accepted tokens by place, if exactly these tokens stand."""
    rounds = proposed = 0
    places = [0] * gamma
    position = convention.start
    while position < length:
        block = min(gamma, length - position - 1) if convention.clipped else gamma
        stood = 0
        while stood < block and stands[position + stood]:
            places[stood] += 1
            stood += 1
        rounds, proposed, position = rounds + 1, proposed + block, position + stood + 1
    return [rounds, proposed, sum(places), *places]


def _outcomes(a: list[float], length: int, gamma: int, convention: Convention) -> Iterator[tuple[float, list[int]]]:
    for stands in itertools.product((False, True), repeat=len(a)):
        weight = float(np.prod([value if stood else 1 - value for value, stood in zip(a, stands, strict=True)]))
        yield weight, _walked(stands, length, gamma, convention)


@EVERY
@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 7])
def test_moments_equal_enumeration_over_all_outcomes(convention: Convention, gamma: int) -> None:
    """Ragged completions of 1 to 5 tokens: mean and variance of every count are exact."""
    lengths, extra = [5, 1, 3, 2, 4], 0 if convention.clipped else gamma - 1
    a_BT = np.random.default_rng(gamma).random((len(lengths), 5 + extra))
    found = round_moments(a_BT, np.array(lengths), gamma, convention)

    for row, length in enumerate(lengths):
        outcomes = list(_outcomes(a_BT[row, : length + extra].tolist(), length, gamma, convention))
        weights = np.array([weight for weight, _ in outcomes])
        counts = np.array([count for _, count in outcomes], dtype=float)
        mean = weights @ counts
        variance = weights @ (counts - mean) ** 2
        for index, moments in enumerate((found.rounds, found.drafted, found.accepted)):
            assert mean[index] == pytest.approx(moments.mean[row], abs=1e-12)
            assert variance[index] == pytest.approx(moments.variance[row], abs=1e-12)
        np.testing.assert_allclose(mean[3:], found.per_position.mean[row], atol=1e-12)
        np.testing.assert_allclose(variance[3:], found.per_position.variance[row], atol=1e-12)


@EVERY
def test_moments_agree_with_the_pass_from_left_to_right(convention: Convention) -> None:
    """Means of the backward recursion equal those of the forward pass, on completions of up to 90 tokens."""
    generator = np.random.default_rng(5)
    lengths, gamma = generator.integers(1, 91, 40), 6
    a_BT = generator.random((40, 90 + gamma))
    forward, backward = (
        expected_rounds(a_BT, lengths, gamma, convention),
        round_moments(a_BT, lengths, gamma, convention),
    )

    np.testing.assert_allclose(forward.rounds_B, backward.rounds.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(forward.proposed_B, backward.drafted.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(forward.accepted_BG.sum(1), backward.accepted.mean, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(forward.accepted_BG, backward.per_position.mean, rtol=1e-12, atol=1e-12)
    assert rounds_variance(a_BT, lengths, gamma, convention).tolist() == backward.rounds.variance.tolist()


def test_the_recursion_of_second_moments_gives_the_same_variance() -> None:
    """E[N^2] by its own recursion, M = 1 + 2 sum T V + sum T M, minus the square of E[N]."""
    gamma, length = 3, 30
    a_T = np.random.default_rng(8).random(length)
    first, second = np.zeros(length + gamma + 2), np.zeros(length + gamma + 2)
    for t in range(length - 1, -1, -1):
        block = min(gamma, length - t - 1)
        stand = [float(np.prod(a_T[t : t + j])) for j in range(block + 1)]
        to = {t + j + 1: stand[j] * (1 - a_T[t + j]) for j in range(block)} | {t + block + 1: stand[block]}
        first[t] = 1 + sum(chance * first[u] for u, chance in to.items())
        second[t] = 1 + sum(chance * (2 * first[u] + second[u]) for u, chance in to.items())
    found = round_moments(a_T[None], np.array([length]), gamma, CONVENTIONS["transformers"]).rounds

    assert first[0] == pytest.approx(found.mean[0], rel=1e-12)
    assert second[0] - first[0] ** 2 == pytest.approx(found.variance[0], rel=1e-9)


@EVERY
def test_simulated_decodes_have_these_moments(convention: Convention) -> None:
    """20,000 decodes of 24 tokens: mean and variance of rounds and of accepted tokens lie within 5 standard errors
    (false alarm below 4 x 5.8e-7 each time, were the seed drawn anew; the variance's error from its fourth moment)."""
    generator, length, gamma, repeats = np.random.default_rng(11), 24, 4, 20_000
    a_T = generator.random(length + gamma - 1)
    found = round_moments(a_T[None], np.array([length]), gamma, convention)
    stands_RT = generator.random((repeats, len(a_T))) < a_T
    counts_R3 = np.array(
        [_walked(tuple(row), length, gamma, convention)[:3] for row in stands_RT.tolist()], dtype=float
    )
    for column, moments in ((0, found.rounds), (2, found.accepted)):
        seen = counts_R3[:, column]
        squares = (seen - seen.mean()) ** 2
        assert abs(seen.mean() - moments.mean[0]) < 5 * (moments.variance[0] / repeats) ** 0.5
        assert abs(squares.mean() - moments.variance[0]) < 5 * squares.std() / repeats**0.5


@EVERY
def test_acceptance_of_zero_or_one_has_no_variance(convention: Convention) -> None:
    """With acceptance 0 or 1 everywhere, variances are exactly 0, for any padding."""
    a_BT = np.random.default_rng(2).integers(0, 2, (6, 20)).astype(float)
    lengths = np.array([12, 1, 7, 3, 9, 12])
    padded_BT = np.where(np.arange(20) < lengths[:, None] + 4, a_BT, np.nan)
    found = round_moments(padded_BT, lengths, 5, convention)

    for moments in (found.rounds, found.drafted, found.accepted, found.per_position):
        assert not moments.variance.any()
        assert np.isfinite(moments.mean).all()


def test_nothing_to_count_is_an_error() -> None:
    """gamma 0, an empty completion, and rows too short for the convention, as for expected rounds."""
    for lengths, gamma, name in (([3], 0, "user"), ([0], 2, "user"), ([3], 3, "vllm")):
        with pytest.raises(ValueError, match=r"at least|needs 5"):
            round_moments(np.ones((1, 4)), np.array(lengths), gamma, CONVENTIONS[name])

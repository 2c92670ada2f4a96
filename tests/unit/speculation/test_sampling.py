"""Sampling settings, drawing, and random streams."""

import itertools
import math

import numpy as np
import pytest
import torch

from pipeline.config.generate import SamplingConfig
from pipeline.errors import UnderstudyError
from pipeline.speculation.rules import TorchRules
from pipeline.speculation.sampling import RandomStreams, check_weight_sums, draw, log_probabilities, probabilities
from pipeline.speculation.settings import GREEDY, Sampling

BELOW_ONE = math.nextafter(1.0, 0.0)


def test_a_config_section_gives_its_settings() -> None:
    """Every setting of the section `sampling` is taken over."""
    section = SamplingConfig(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    assert Sampling(0.5, 7, 0.9, 0.1) == Sampling.from_config(section)


def _random_logits(rows: int = 40, vocabulary: int = 9) -> torch.Tensor:
    return 2 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def _brute_force(logits: list[float], sampling: Sampling) -> list[float]:
    """The same filters in plain Python, token by token."""
    weights = {token: math.exp(value / sampling.temperature) for token, value in enumerate(logits)}
    order = sorted(weights, key=lambda token: -weights[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        total, kept, mass = sum(weights[token] for token in order), [], 0.0
        for token in order:
            if mass < sampling.top_p:
                kept.append(token)
            mass += weights[token] / total
        order = kept
    order = [token for token in order if weights[token] >= sampling.min_p * weights[order[0]]]
    total = sum(weights[token] for token in order)
    return [weights[token] / total if token in order else 0.0 for token in weights]


SETTINGS = [
    Sampling(temperature, top_k, top_p, min_p)
    for temperature, top_k, top_p, min_p in itertools.product((0.7, 1.0, 1.9), (0, 1, 4), (0.3, 0.8, 1.0), (0.0, 0.2))
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_filters_equal_brute_force(sampling: Sampling) -> None:
    """Temperature, top-k, top-p and min-p, alone and combined, equal a plain Python implementation."""
    logits_BV = _random_logits()
    expected = [_brute_force(row, sampling) for row in logits_BV.tolist()]

    np.testing.assert_allclose(log_probabilities(logits_BV, sampling).exp().numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("sampling", [*SETTINGS, GREEDY], ids=str)
def test_probabilities_are_those_of_the_logarithms(sampling: Sampling) -> None:
    """Both ways to the distribution agree, in fp64 to rounding, and sum to 1."""
    logits_BV = _random_logits()
    p_BV = probabilities(logits_BV, sampling)

    torch.testing.assert_close(log_probabilities(logits_BV, sampling).exp(), p_BV, atol=1e-14, rtol=0)
    torch.testing.assert_close(torch.ones(len(p_BV), dtype=torch.float64), p_BV.sum(-1), atol=1e-14, rtol=0)


def test_ties_are_treated_alike_by_filters() -> None:
    """All ties at the top-k boundary are kept, as in transformers; top-p keeps as many as its mass needs."""
    tied = torch.tensor([[2.0, 2.0, 2.0, 0.0]], dtype=torch.float64)

    assert [[True, True, True, False]] == (probabilities(tied, Sampling(top_k=2)) > 0).tolist()
    assert [[True, True, True, False]] == (probabilities(tied, Sampling(min_p=1.0)) > 0).tolist()
    assert 1 == int((probabilities(tied, Sampling(top_p=0.3)) > 0).sum())
    assert [[1, 0, 0, 0]] == probabilities(tied, GREEDY).tolist()


@pytest.mark.parametrize("sums", [[1.0, math.nan], [math.inf, 1.0], [0.0, 1.0], [-1.0, 1.0]])
def test_only_positive_finite_sums_are_distributions(sums: list[float]) -> None:
    """One invalid row among valid ones is enough."""
    check_weight_sums(torch.tensor([1.0, 1e-300], dtype=torch.float64))
    with pytest.raises(UnderstudyError, match="check its weights and dtype"):
        check_weight_sums(torch.tensor(sums))


def test_temperature_zero_is_the_lowest_of_equal_maxima() -> None:
    """Argmax, not a small temperature: one-hot, and the lowest id where logits tie."""
    found = log_probabilities(torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, -1.0, 0.0]]), GREEDY)

    assert [[0, 1, 0, 0], [1, 0, 0, 0]] == found.exp().tolist()


def test_top_k_wider_than_the_vocabulary_keeps_all() -> None:
    """A deployment's top-k may exceed a small vocabulary."""
    logits_BV = _random_logits()

    assert torch.equal(
        log_probabilities(logits_BV, Sampling()), log_probabilities(logits_BV, Sampling(top_k=logits_BV.shape[1] + 1))
    )


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9), Sampling(min_p=0.1), GREEDY], ids=str)
def test_a_logit_of_minus_infinity_has_probability_zero(sampling: Sampling) -> None:
    """A logit of -inf has probability 0, and the others stay finite."""
    p_V = log_probabilities(torch.tensor([1.0, -torch.inf, 0.5]), sampling).exp()

    assert 0 == p_V[1]
    assert 1 == pytest.approx(float(p_V.sum()))


def test_half_precision_is_computed_in_single() -> None:
    """bfloat16 logits are converted to fp32 before the softmax; fp64 stays fp64."""
    assert torch.float32 == log_probabilities(torch.zeros(3, dtype=torch.bfloat16), Sampling()).dtype
    assert torch.float64 == log_probabilities(torch.zeros(3, dtype=torch.float64), Sampling()).dtype


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_k=2), Sampling(top_p=0.5), GREEDY], ids=str)
@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_logits_that_are_not_numbers_are_an_error(sampling: Sampling, damage: float) -> None:
    """NaN and +inf raise when a token is drawn, also at temperature 0, where argmax would hide them."""
    p_BV = log_probabilities(torch.tensor([[0.0, 1.0, 0.0], [0.0, damage, 0.0]]), sampling).exp()

    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        check_weight_sums(draw(p_BV, torch.tensor([0.5, 0.5]))[1])


def test_no_weight_at_all_is_an_error() -> None:
    """Weights that sum to 0 have no token to draw."""
    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        check_weight_sums(draw(torch.zeros(1, 4), torch.tensor([0.3]))[1])


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.5, BELOW_ONE])
@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-30, 3e20, 1e-310])
def test_a_token_of_weight_zero_is_never_drawn(uniform: float, scale: float) -> None:
    """At both ends of the unit interval and for weights of any scale, only tokens of positive weight are drawn."""
    patterns = [list(bits) for bits in itertools.product((0.0, 0.1, 0.7), repeat=4) if any(bits)]
    p_BV = torch.tensor(patterns, dtype=torch.float64) * scale
    tokens, sums = draw(p_BV, torch.full((len(patterns),), uniform, dtype=torch.float64))

    check_weight_sums(sums)
    assert bool((p_BV.gather(1, tokens.unsqueeze(1)) > 0).all())


def test_draw_inverts_the_cumulative_sum() -> None:
    """Token i is drawn exactly for uniform numbers between the cumulative sums before and after it."""
    p_V = torch.tensor([2.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.499999, 0.5, 0.749999, 0.75, BELOW_ONE], dtype=torch.float64)

    assert [0, 0, 2, 2, 3, 3] == draw(p_V.expand(len(uniform), 4).contiguous(), uniform)[0].tolist()


def test_a_stream_depends_on_its_seed_alone() -> None:
    """A row's numbers do not depend on the batch or on how many are taken at a time."""
    together = RandomStreams([7, 8, 9])
    taken = torch.cat([together.take(count) for count in (1, 5000, 3, 4096)], dim=1)
    alone = torch.cat([RandomStreams([8]).take(9100)], dim=1)

    assert torch.equal(alone[0], taken[1])


def test_selecting_rows_does_not_move_their_streams() -> None:
    """After rows were removed, the streams of the others continue."""
    streams, alone = RandomStreams([1, 2, 3, 4]), RandomStreams([4])
    streams.take(10), alone.take(10)
    streams.select([1, 3])

    for count in (20, 4090, 50):  # from numbers drawn before the selection, across their end, and from fresh ones
        assert torch.equal(alone.take(count)[0], streams.take(count)[1])


def test_streams_lie_in_the_unit_interval_and_differ() -> None:
    """Numbers are in [0, 1), and streams of neighbouring seeds are not correlated (false alarm below 1e-9: 6 sigma)."""
    numbers = RandomStreams([0, 1, 2]).take(20_000).numpy()

    assert 0 <= numbers.min()
    assert 1 > numbers.max()
    assert 6 / math.sqrt(20_000) > np.abs(np.corrcoef(numbers) - np.eye(3)).max()


def test_a_greedy_draft_whose_logits_are_all_negative_is_no_damaged_one() -> None:
    """Only NaN and infinite logits are."""
    rules = TorchRules(Sampling(), GREEDY)

    drawn = rules.draw(torch.tensor([[-9.0, -3.0, -4.0]]), torch.zeros(1, dtype=torch.float64))

    check_weight_sums(drawn.sums_B)
    assert [1] == drawn.token_B.tolist()

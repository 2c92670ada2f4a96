"""Sparse distributions: top tokens, unbiased sampling of the others, and the error of three-byte entries."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.generation.distributions import SparseDistribution, pack, sparsify, unpack

U = (np.arange(2000) + 0.5) / 2000  # every draw there can be, evenly


def _law(weights: list[float]) -> torch.Tensor:
    p = torch.tensor(weights, dtype=torch.float64)
    return (p / p.sum()).log()


LAWS = {
    "sure": _law([100, 1, 1, 1, 1, 1, 1]),
    "two and a tail": _law([0.4, 0.05, 0.35, 0.05, 0.05, 0.04, 0.03, 0.03]),
    "flat": _law([1.0] * 9),
    "steep": _law([2.0**-i for i in range(12)]),
    "unordered": _law([1, 7, 2, 2, 9, 1, 1, 3, 3, 20, 1]),
}


def _estimates(kept: SparseDistribution, vocabulary: int) -> np.ndarray:
    """(N, V): what the kept tokens of each sample of one law say of every token's probability."""
    certain, rows_N1 = int(kept.certain_N[0]), np.arange(len(kept.ids_NK))[:, None]
    estimates_NV = np.zeros((len(kept.ids_NK), vocabulary))
    np.add.at(estimates_NV, (rows_N1, kept.ids_NK[:, :certain]), np.exp(kept.log_p_NK[:, :certain].astype(float)))
    if drawn := kept.ids_NK.shape[1] - certain:
        share_N = np.exp(kept.rest_log_p_N.astype(float)) / drawn
        np.add.at(estimates_NV, (rows_N1, kept.ids_NK[:, certain:]), share_N[:, None])
    return estimates_NV


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("law", LAWS)
def test_drawn_tokens_estimate_every_probability_without_bias(law: str, count: int) -> None:
    """The mean over all samples is p, token by token, each single estimate has mass 1, and no token is kept twice."""
    log_p_V = LAWS[law]
    kept = sparsify(log_p_V.expand(len(U), -1), count, "sampled", U)
    estimates = _estimates(kept, len(log_p_V))

    assert {count} == {len(set(row)) for row in kept.ids_NK.tolist()}
    np.testing.assert_allclose(estimates.mean(0), log_p_V.exp(), atol=2e-3)
    np.testing.assert_allclose(estimates.sum(1), 1, atol=2e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.001, 1.0), min_size=6, max_size=12),
    st.integers(1, 5),
    st.floats(0.0, 0.5),
    st.integers(0, 2),
)
@example(
    [0.001, 0.545, 1.0, 0.001, 1.0, 0.001], 5, 0.5, 0
)  # if what is not listed counted as listed, one would be there twice
def test_of_listed_tokens_nothing_is_biased_or_kept_twice(
    weights: list[float], count: int, unlisted: float, foreign: int
) -> None:
    """A server lists only the likeliest tokens, some of which the pair may not share (log p -inf): no token is kept twice, and
    the mass of what is not listed goes to the sampled ones in proportion to p."""
    p = np.array(weights) / sum(weights) * (1 - unlisted)
    log_p_V = torch.cat([torch.from_numpy(p).log(), torch.full((foreign,), -torch.inf, dtype=torch.float64)])
    kept = sparsify(log_p_V.expand(len(U), -1), count, "sampled", U, log_p_V.exp().sum().expand(len(U)))
    estimates = _estimates(kept, len(log_p_V))
    certain = int(kept.certain_N[0])

    assert {count} == {len(set(row)) for row in kept.ids_NK.tolist()}
    assert not np.isin(kept.ids_NK, np.arange(len(p), len(log_p_V))).any()
    rest = np.setdiff1d(np.arange(len(p)), kept.ids_NK[0, :certain])
    if certain < count:  # the mass that is not listed is shared in proportion to p
        expected = p[rest] * (1 - p[kept.ids_NK[0, :certain]].sum()) / p[rest].sum()
        np.testing.assert_allclose(estimates.mean(0)[rest], expected, atol=2e-3)
    np.testing.assert_allclose(estimates.mean(0)[kept.ids_NK[0, :certain]], p[kept.ids_NK[0, :certain]], atol=1e-6)


def test_tokens_heavier_than_their_share_are_top_tokens() -> None:
    """By hand: of (0.4, 0.35, 0.05, ...) with four entries, two are top tokens, and two samples represent 0.125 each."""
    kept = sparsify(LAWS["two and a tail"][None], 4, "sampled", np.array([0.5]))

    assert 2 == kept.certain_N[0]
    assert [0, 2] == kept.ids_NK[0, :2].tolist()
    assert np.log(0.25) == pytest.approx(float(kept.rest_log_p_N[0]), abs=1e-3)


def test_top_keeps_the_likeliest_and_the_mass_of_the_rest() -> None:
    """Nothing is sampled, for any random numbers."""
    kept = sparsify(LAWS["steep"].expand(2, -1), 3, "top_k", np.array([0.1, 0.9]))

    assert [[0, 1, 2]] * 2 == kept.ids_NK.tolist()
    assert [3, 3] == kept.certain_N.tolist()
    rest = 1 - LAWS["steep"].exp()[:3].sum()
    np.testing.assert_allclose(np.exp(kept.rest_log_p_N.astype(float)), rest, rtol=2e-3)


@pytest.mark.parametrize("how", ["sampled", "top_k"])
def test_a_rest_without_mass_is_a_bucket(how: str) -> None:
    """A target with no mass left outside the top tokens gives finite values."""
    log_p_NV = torch.tensor([[60.0, 0, 0, 0, 0, 0]]).log_softmax(-1)
    kept = sparsify(log_p_NV, 3, how, np.array([0.3]))  # type: ignore[arg-type]

    assert 3 == len(set(kept.ids_NK[0].tolist()))
    assert 3 == kept.certain_N[0]
    assert np.isfinite(kept.log_p_NK).all()
    assert np.isfinite(kept.rest_log_p_N).all()


@pytest.mark.parametrize(
    ("vocabulary", "error", "how"),
    [(12, 1e-3, "top_k"), (2048, 2e-3, "sampled"), (152_000, 0.07, "top_k"), (262_208, 0.14, "sampled")],
)
def test_three_bytes_hold_a_token_and_its_probability(vocabulary: int, error: float, how: str) -> None:
    """Ids are exact, probabilities are accurate to the remaining bits, and with the rest they sum to 1."""
    generator = torch.Generator().manual_seed(vocabulary)
    log_p_NV = (3 * torch.randn(24, vocabulary, generator=generator)).log_softmax(-1)
    kept = sparsify(log_p_NV, 8, how, np.random.default_rng(0).random(24))  # type: ignore[arg-type]
    entries = pack(kept, vocabulary)
    ids_NK, log_p_NK = unpack(entries, kept.certain_N, kept.rest_log_p_N, vocabulary)
    certain_NK = np.arange(8) < kept.certain_N[:, None]

    assert (24, 8, 3) == entries.shape
    assert np.uint8 == entries.dtype
    np.testing.assert_array_equal(kept.ids_NK, ids_NK)
    p_NK, own_NK = np.exp(log_p_NK), np.exp(kept.log_p_NK)
    assert np.abs(p_NK - own_NK)[certain_NK].max() < error
    some_N = kept.certain_N > 0
    total_N = (p_NK * certain_NK).sum(1) + np.exp(kept.rest_log_p_N.astype(float))
    np.testing.assert_allclose(total_N[some_N], 1, atol=1e-3)
    # A drawn one is as it was, to half a step of the bits that its id leaves.
    levels = 2 ** (24 - (vocabulary - 1).bit_length()) - 1
    share_N1 = (
        kept.rest_log_p_N.astype(float)[:, None] - np.log(np.maximum(8 - kept.certain_N.astype(float), 1))[:, None]
    )
    codes_NK = [np.sqrt(((log_p - share_N1) / -20.0).clip(0, 1)) for log_p in (log_p_NK, kept.log_p_NK)]
    assert np.abs(codes_NK[0] - codes_NK[1])[~certain_NK].max(initial=0) < 0.51 / levels + 1e-6


@pytest.mark.parametrize(("vocabulary", "error"), [(2048, 5e-4), (32_000, 3e-3), (152_000, 0.02)])
def test_what_rounding_costs_the_acceptance(vocabulary: int, error: float) -> None:
    """min(p, q) is concave, so a rounded p of a drawn token can only lose: how much, for a perfect draft of a target with 2 to
    3 nats of entropy. The forward KL's weights are not rounded."""
    generator = torch.Generator().manual_seed(5)
    log_p_NV = (6 * torch.randn(40, vocabulary, generator=generator)).log_softmax(-1)
    kept = sparsify(log_p_NV, 16, "sampled", np.random.default_rng(1).random(40))
    ids_NK, log_p_NK = unpack(pack(kept, vocabulary), kept.certain_N, kept.rest_log_p_N, vocabulary)
    own_NK = np.take_along_axis(log_p_NV.numpy(), ids_NK, axis=1)
    drawn_NK = np.arange(16) >= kept.certain_N[:, None]
    share_N = kept.rest_log_p_N - np.log(np.maximum(16 - kept.certain_N.astype(float), 1))
    weight_NK = np.where(drawn_NK, np.exp(share_N[:, None] - log_p_NK), 1.0)
    acceptance_N = (weight_NK * np.exp(np.minimum(log_p_NK, own_NK))).sum(1)

    assert 0 <= 1 - acceptance_N.mean() + 1e-4 < error


def test_sixteen_tokens_of_a_large_vocabulary_fit_in_sixty_bytes() -> None:
    """Beside the token's id and its log p: what the store promises."""
    from pipeline.generation.completion_store import token_schema

    schema = token_schema(16, 152_000)
    widths = [field.type.list_size if field.name == "entries" else field.type.bit_width // 8 for field in schema]

    assert 59 == sum(widths)


@pytest.mark.parametrize("uniform", [0.0, float(np.nextafter(1, 0))])
@pytest.mark.parametrize("law", LAWS)
def test_the_smallest_and_largest_random_numbers_sample_from_the_rest(law: str, uniform: float) -> None:
    """At the smallest and the largest random number no top token and no id beyond the last is sampled."""
    kept = sparsify(LAWS[law].float()[None], 4, "sampled", np.array([uniform]))

    assert 4 == len(set(kept.ids_NK[0].tolist()))

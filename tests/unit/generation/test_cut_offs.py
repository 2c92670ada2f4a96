"""log p after cut-offs from log p before them and a list of the likeliest tokens."""

import numpy as np
import pytest

from pipeline.errors import UnderstudyError, UsageError
from pipeline.generation.cut_offs import cut_off, sampled_log_p
from pipeline.servers.answers import LikeliestTokens
from pipeline.speculation.settings import Sampling
from tests.standin_server import sampled_from

_TOKENS = 400


def _distributions(seed: int, spread: float) -> np.ndarray:
    logits_NV = spread * np.random.default_rng(seed).standard_normal((20, _TOKENS))
    return np.asarray(logits_NV - np.log(np.exp(logits_NV).sum(1, keepdims=True)))


def _listed(log_p_NV: np.ndarray, count: int) -> LikeliestTokens:
    ids_NK = np.argsort(-log_p_NV, axis=1)[:, :count]
    return LikeliestTokens(ids_NK.astype(np.int32), np.take_along_axis(log_p_NV, ids_NK, 1).astype(np.float32))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7, top_k=10),
        Sampling(0.7, top_k=1),
        Sampling(0.7, top_p=0.9),
        Sampling(1.4, min_p=0.1),
        Sampling(0.7, top_k=30, min_p=0.1),
        Sampling(1.0, top_p=0.9, min_p=0.02),
    ],
)
def test_log_p_is_exact_where_the_cut_offs_end_within_the_list(sampling: Sampling) -> None:
    """Of every token that can be sampled; the others are excluded."""
    log_p_NV, body = _distributions(0, 3.0), vars(sampling) | {"temperature": 1.0}
    listed = _listed(log_p_NV, 128)
    expected_NV = np.stack([sampled_from(row, body) for row in log_p_NV])
    tokens_N = log_p_NV.argmax(1).astype(np.int32)
    log_p_N, sampled_NK = cut_off(tokens_N, log_p_NV.max(1).astype(np.float32), listed, sampling)
    assert expected_NV.max(1) == pytest.approx(log_p_N, abs=1e-5)
    np.testing.assert_allclose(sampled_NK, np.take_along_axis(expected_NV, listed.ids_NK, 1), atol=1e-5)


def test_a_nucleus_that_goes_on_beyond_the_list_is_known_within_the_last_token() -> None:
    """Its mass is at least top_p, and at most one more token: the error is below half of p of the last one that is listed. A
    sampled token that is not listed has a log p, too."""
    sampling, log_p_NV = Sampling(0.7, top_p=0.9), _distributions(1, 0.3)
    listed = _listed(log_p_NV, 128)
    assert (np.exp(listed.log_p_NK).sum(1) < 0.9).all()
    tokens_N = np.argsort(-log_p_NV, axis=1)[:, 200].astype(np.int32)
    own_N = np.take_along_axis(log_p_NV, tokens_N[:, None], 1)[:, 0]
    log_p_N, _ = cut_off(tokens_N, own_N.astype(np.float32), listed, sampling)
    body = vars(sampling) | {"temperature": 1.0}
    expected_N = np.array([sampled_from(row, body)[token] for row, token in zip(log_p_NV, tokens_N, strict=True)])
    assert np.abs(expected_N - log_p_N).max() < 0.5 * np.exp(listed.log_p_NK[:, -1]).max() / 0.9


@pytest.mark.parametrize("sampling", [Sampling(0.7, min_p=0.01), Sampling(0.7, top_k=200)])
def test_too_few_listed_tokens_are_refused(sampling: Sampling) -> None:
    """In one line that names the setting."""
    log_p_NV = _distributions(2, 0.3)
    best_N = log_p_NV.argmax(1).astype(np.int32)
    with pytest.raises(UsageError, match=r"generate.server.logprobs is 20: more tokens can be sampled than are listed"):
        cut_off(best_N, log_p_NV.max(1).astype(np.float32), _listed(log_p_NV, 20), sampling)


def test_a_token_that_cannot_be_sampled_is_an_error_unless_it_is_at_the_limit() -> None:
    """The likeliest tokens reach 0.6 and 0.90001; which tokens a top_p of 0.9 keeps is then a matter of rounding."""
    p, sampling = [0.6, 0.30001, 0.05999, 0.04], Sampling(0.7, top_p=0.9)
    for token in (1, 2):
        assert np.log(p[token] / 0.90001) == pytest.approx(_of(p, token, sampling), abs=1e-5)
    with pytest.raises(UnderstudyError, match="the server sampled token 3, which `sampling` excludes"):
        _of(p, 3, sampling)


def _of(p: list[float], token: int, sampling: Sampling, count: int | None = None) -> float:
    log_p_NV = np.log(np.array([p]))
    own_N = log_p_NV[0, token : token + 1].astype(np.float32)
    return float(cut_off(np.array([token], np.int32), own_N, _listed(log_p_NV, count or len(p)), sampling)[0][0])


@pytest.mark.parametrize(
    ("p", "sampling", "count", "token", "mass"),
    [
        ([0.6, 0.35, 0.02999, 0.02001], Sampling(0.7, min_p=0.05), 4, 2, 0.95),  # at the limit of min_p
        ([0.5, 0.2, 0.19999, 0.10001], Sampling(0.7, top_k=2), 4, 2, 0.7),  # nearly as likely as the last of the top_k
        ([0.4, 0.3, 0.2, 0.1], Sampling(0.7, top_k=2), 2, 1, 0.7),  # all of the top_k are listed, and nothing else
    ],
)
def test_a_token_at_a_limit_may_be_on_either_side_of_it(
    p: list[float], sampling: Sampling, count: int, token: int, mass: float
) -> None:
    """Its log p is that before cut-offs less that of the mass that is kept."""
    assert np.log(p[token] / mass) == pytest.approx(_of(p, token, sampling, count), abs=1e-5)


def test_a_token_that_is_not_listed_needs_cut_offs_that_go_on() -> None:
    """Here they end within the list."""
    with pytest.raises(UnderstudyError, match="token 3, which `sampling` excludes"):
        _of([0.4, 0.3, 0.2, 0.1], 3, Sampling(0.7, top_k=1), 2)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.6),
        Sampling(1.3),
        Sampling(0.7, top_k=10, top_p=0.8),
        Sampling(1.0, top_p=0.95),
        Sampling(0.7, min_p=0.1),
    ],
)
def test_log_p_as_sampled_from_is_known_from_a_scoring(sampling: Sampling) -> None:
    """Of the likeliest token, within the tolerance with which weights are compared; the list holds nearly all of the mass."""
    log_p_NV = _distributions(3, 4.0)
    tokens_N = log_p_NV.argmax(1).astype(np.int32)
    own_N = log_p_NV.max(1).astype(np.float32)
    expected_N = np.array([sampled_from(row, vars(sampling)).max() for row in log_p_NV])
    found_N = sampled_log_p(tokens_N, own_N, _listed(log_p_NV, 128), sampling, _TOKENS)
    assert expected_N == pytest.approx(found_N, abs=0.05)


@pytest.mark.parametrize("sampling", [Sampling(0.5), Sampling(1.3), Sampling(0.7, top_k=30, top_p=0.8)])
def test_log_p_is_not_known_from_too_short_a_list(sampling: Sampling) -> None:
    """Normalised over the listed tokens it would be wrong, and look like that of other weights."""
    log_p_NV = _distributions(4, 0.5)
    tokens_N, own_N = log_p_NV.argmax(1).astype(np.int32), log_p_NV.max(1).astype(np.float32)
    assert np.isnan(sampled_log_p(tokens_N, own_N, _listed(log_p_NV, 20), sampling, _TOKENS)).all()

"""Losses by hand, in expectation, and by finite differences; the effect of truncation on each."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pipeline.distillation.losses import (
    LOSSES,
    MERGED,
    Columns,
    Loss,
    SparseTargets,
    cross_entropy,
    forward_kl,
    full_columns,
    jensen_shannon,
    lk_hybrid,
    negative_log_acceptance,
    reverse_kl,
    sparse_columns,
    total_variation,
)
from pipeline.generation.distributions import sparsify

DIVERGENCES = [loss for loss in LOSSES.values() if loss is not lk_hybrid]
SUMS: list[Loss] = [forward_kl, reverse_kl, total_variation]  # of a term a token


def _pair(rows: int, vocabulary: int, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p_NV = (scale * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)).softmax(-1)
    return p_NV, scale * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)


def _top(p_NV: torch.Tensor, count: int, tokens_N: torch.Tensor | None = None) -> SparseTargets:
    top = p_NV.topk(count, dim=-1)
    rest_N = 1 - top.values.sum(-1)
    tokens_N = top.indices[:, 0] if tokens_N is None else tokens_N
    return SparseTargets(top.indices, top.values.log(), torch.full((len(p_NV),), count), rest_N.log(), tokens_N)


def _drawn(p_NV: torch.Tensor, count: int, uniform: np.ndarray) -> SparseTargets:
    kept = sparsify(p_NV.log(), count, "sampled", uniform)
    ids_NK = torch.from_numpy(kept.ids_NK.astype(np.int64))
    exact_N = torch.stack([1 - p[ids[:n]].sum() for p, ids, n in zip(p_NV, ids_NK, kept.certain_N, strict=True)])
    certain_N = torch.from_numpy(kept.certain_N.astype(np.int64))
    return SparseTargets(ids_NK, p_NV.gather(-1, ids_NK).log(), certain_N, exact_N.log(), ids_NK[:, 0])


def _log_q(logits_NV: torch.Tensor) -> torch.Tensor:
    return logits_NV.log_softmax(-1)


BY_HAND: list[tuple[Loss, float]] = [
    (forward_kl, 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
    (reverse_kl, 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)),
    (
        jensen_shannon,
        0.5 * (0.5 * math.log(0.5 / 0.375) + 0.5 * math.log(0.5 / 0.625))
        + 0.5 * (0.25 * math.log(0.25 / 0.375) + 0.75 * math.log(0.75 / 0.625)),
    ),
    (total_variation, 0.25),
    (negative_log_acceptance, -math.log(0.75)),
    (
        lk_hybrid,
        math.exp(-2.25) * (0.5 * math.log(2) + 0.5 * math.log(2 / 3)) + (1 - math.exp(-2.25)) * 0.25,
    ),
]


@pytest.mark.parametrize(("loss", "expected"), BY_HAND, ids=lambda item: getattr(item, "__name__", ""))
def test_two_tokens_by_hand(loss: Loss, expected: float) -> None:
    """p = (1/2, 1/2), q = (1/4, 3/4)."""
    columns = full_columns(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log())

    assert expected == pytest.approx(loss(columns).item(), rel=1e-5)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_jensen_shannon_weighs_its_two_sides(beta: float) -> None:
    """beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q, operation by operation."""
    p_NV, logits_NV = _pair(3, 5)
    q_NV = logits_NV.softmax(-1)
    m_NV = beta * p_NV + (1 - beta) * q_NV
    expected = beta * (p_NV * (p_NV / m_NV).log()).sum(-1) + (1 - beta) * (q_NV * (q_NV / m_NV).log()).sum(-1)

    torch.testing.assert_close(expected, jensen_shannon(full_columns(_log_q(logits_NV), p_NV.log()), beta))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_perfect_draft_has_no_loss(loss: Loss) -> None:
    """For full and for sparse distributions."""
    p_NV, _ = _pair(4, 9)
    uniform = np.array([0.1, 0.4, 0.7, 0.9])

    for columns in (
        full_columns(p_NV.log(), p_NV.log()),
        sparse_columns(p_NV.log(), _top(p_NV, 3)),
    ):
        torch.testing.assert_close(torch.zeros(4, dtype=torch.float64), loss(columns), atol=1e-12, rtol=0)
    estimated = sparse_columns(p_NV.log(), _drawn(p_NV, 3, uniform))
    torch.testing.assert_close(torch.zeros(4, dtype=torch.float64), loss(estimated), atol=1e-12, rtol=0)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_rest_of_one_token_leaves_the_whole_loss(loss: Loss) -> None:
    """With k = V - 1 nothing is truncated, for any completion token."""
    p_NV, logits_NV = _pair(6, 5)
    expected = loss(full_columns(_log_q(logits_NV), p_NV.log()))

    for tokens_N in (p_NV.argmin(-1), p_NV.argmax(-1)):
        torch.testing.assert_close(expected, loss(sparse_columns(_log_q(logits_NV), _top(p_NV, 4, tokens_N))))


@pytest.mark.parametrize("loss", DIVERGENCES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_bucket_only_hides_disagreement(loss: Loss, merged: bool, count: int) -> None:
    """If the completion token is stored, every divergence is at most that of the full distributions; also for merged
    sampled entries."""
    p_NV, logits_NV = _pair(200, 10, seed=count, scale=2.0)
    whole = loss(full_columns(_log_q(logits_NV), p_NV.log()))
    stored = _drawn(p_NV, count, np.linspace(0, 0.99, 200)) if merged else _top(p_NV, count)
    truncated = loss(sparse_columns(_log_q(logits_NV), stored, merged))

    assert bool((truncated <= whole + 1e-12).all())
    assert bool((truncated < whole - 1e-3).any())


def _gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(value, logits, retain_graph=True)
    return gradient


@pytest.mark.parametrize("loss", SUMS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.long), 5])
def test_drawn_tokens_estimate_sums_without_bias(loss: Loss, count: int) -> None:
    """Over all samples, the mean of value and gradient is that of the full loss, although few of 9 tokens are stored."""
    p_NV, logits_NV = _pair(1, 9, seed=count, scale=1.5)
    logits_NV.requires_grad_()
    whole = loss(full_columns(_log_q(logits_NV), p_NV.log())).sum()
    draws = 8_000
    uniform = (np.arange(draws) + 0.5) / draws
    stored = _drawn(p_NV.expand(draws, -1), count, uniform)
    estimated = loss(sparse_columns(_log_q(logits_NV).expand(draws, -1), stored)).mean()

    assert whole.item() == pytest.approx(estimated.item(), abs=4e-3)
    torch.testing.assert_close(_gradient(whole, logits_NV), _gradient(estimated, logits_NV), atol=4e-3, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_drawn_token_makes_up_for_the_bucket(count: int) -> None:
    """Summed over the target's tokens, weighted by p, value (up to a constant) and gradient of forward KL equal those of
    the full loss, although only k of 7 probabilities are stored."""
    p_NV, logits_NV = _pair(1, 7, seed=count)
    logits_NV.requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for token in range(7):
        columns = sparse_columns(_log_q(logits_NV), _top(p_NV, count, torch.tensor([token])))
        expected = expected + p_NV[0, token] * forward_kl(columns).sum()
    whole = forward_kl(full_columns(_log_q(logits_NV), p_NV.log())).sum()

    torch.testing.assert_close(_gradient(whole, logits_NV), _gradient(expected, logits_NV), atol=1e-12, rtol=0)
    rest_V = p_NV[0].clone()
    rest_V[p_NV[0].topk(count).indices] = 0
    inside_V = rest_V[rest_V > 0] / rest_V.sum()
    entropy = -(inside_V * inside_V.log()).sum() * rest_V.sum()
    assert whole.item() == pytest.approx((expected - entropy).item())


def test_mass_in_the_rest_is_not_free() -> None:
    """The bucket is part of the loss: a draft with mass outside the stored tokens is penalised."""
    p_NV = torch.tensor([[0.6, 0.3, 0.05, 0.05]], dtype=torch.float64)
    spread = torch.tensor([[0.06, 0.03, 0.455, 0.455]], dtype=torch.float64).log()
    by_hand = 0.9 * math.log(10) + 0.1 * math.log(0.1 / 0.91)

    assert by_hand == pytest.approx(forward_kl(sparse_columns(spread, _top(p_NV, 2))).item())
    assert 0.81 == pytest.approx(total_variation(sparse_columns(spread, _top(p_NV, 2))).item())


def _stored_both(p_NV: torch.Tensor) -> list[Callable[[torch.Tensor], Columns]]:
    tokens_N, uniform = torch.arange(len(p_NV)), np.linspace(0.1, 0.9, len(p_NV))
    return [
        lambda logits: full_columns(_log_q(logits), p_NV.log()),
        lambda logits: sparse_columns(_log_q(logits), _top(p_NV, 2, tokens_N)),
        lambda logits: sparse_columns(_log_q(logits), _drawn(p_NV, 2, uniform)),
    ]


@pytest.mark.parametrize(
    "loss", [loss for loss in LOSSES.values() if loss is not lk_hybrid], ids=lambda loss: loss.__name__
)
@pytest.mark.parametrize("form", [0, 1, 2], ids=["full", "top_k", "sampled"])
def test_gradients_equal_finite_differences(loss: Loss, form: int) -> None:
    """In double precision, with drawn tokens inside and outside the kept ones. (The hybrid holds its weight constant.)"""
    p_NV, logits_NV = _pair(4, 6)
    columns = _stored_both(p_NV)[form]

    assert torch.autograd.gradcheck(lambda logits: loss(columns(logits)), (logits_NV.requires_grad_(),))


def test_the_hybrid_holds_its_weight_constant() -> None:
    """Its gradient is that of the two losses at weights that do not move."""
    p_NV, logits_NV = _pair(4, 6)
    columns = _stored_both(p_NV)[0](logits_NV.requires_grad_())
    weight_N = torch.exp(-3 * (1 - total_variation(columns))).detach()
    expected = (weight_N * forward_kl(columns) + (1 - weight_N) * total_variation(columns)).sum()

    torch.testing.assert_close(_gradient(expected, logits_NV), _gradient(lk_hybrid(columns).sum(), logits_NV))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_disjoint_distributions_are_finite_in_fp32(loss: Loss) -> None:
    """For one-hot distributions of draft and target on different tokens, loss and gradient are finite."""
    logits_NV = torch.tensor([[90.0, 0.0, 0.0, -90.0]], requires_grad=True)
    stored = SparseTargets(
        torch.tensor([[3, 1]]),
        torch.tensor([[-1e-7, -20.0]]),
        torch.tensor([2]),
        torch.tensor([math.log(1e-7)]),
        torch.tensor([2]),
    )
    log_p_NV = torch.tensor([[-torch.inf, -torch.inf, -torch.inf, 0.0]])

    for columns in (sparse_columns(_log_q(logits_NV), stored), full_columns(_log_q(logits_NV), log_p_NV)):
        value = loss(columns)
        assert torch.isfinite(value).all()
        assert torch.isfinite(_gradient(value.sum(), logits_NV)).all()


def test_total_variation_has_no_gradient_where_the_logarithm_has() -> None:
    """Far from the target the gradient of TV is almost 0 and that of -log acceptance is large."""
    logits_NV = torch.tensor([[12.0, 0.0]], dtype=torch.float64, requires_grad=True)
    columns = full_columns(_log_q(logits_NV), torch.tensor([[1e-6, 1.0]], dtype=torch.float64).log())

    assert _gradient(total_variation(columns).sum(), logits_NV).abs().max() < 1e-4
    assert _gradient(negative_log_acceptance(columns).sum(), logits_NV).abs().max() > 0.5


def test_cross_entropy_is_that_of_the_drawn_tokens() -> None:
    """-log q, by hand."""
    log_q_NV = _log_q(torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]]))

    torch.testing.assert_close(torch.tensor([math.log(2), math.log(4)]), cross_entropy(log_q_NV, torch.tensor([1, 1])))


def test_a_drawn_row_needs_no_help_from_the_token() -> None:
    """The term within the rest is only for the bucket: sampled entries already estimate the rest."""
    p_NV, logits_NV = _pair(1, 9)
    stored = _drawn(p_NV, 2, np.array([0.3]))
    kept = set(stored.ids_NK[0].tolist())
    values = {
        round(forward_kl(sparse_columns(_log_q(logits_NV), stored._replace(tokens_N=torch.tensor([t])))).item(), 12)
        for t in range(9)
    }

    assert len(kept) < 9
    assert 1 == len(values)


def test_the_rest_of_q_does_not_cancel() -> None:
    """In fp32 1 - sum(q) of a confident draft is 0 or noise; the rest is summed directly."""
    logits_NV = torch.tensor([[30.0, 0.0, 1.0, 2.0]])
    stored = SparseTargets(
        torch.tensor([[0]]),
        torch.tensor([[-0.1]]),
        torch.tensor([1]),
        torch.tensor([math.log(1 - math.exp(-0.1))]),
        torch.tensor([0]),
    )
    expected = logits_NV.double().log_softmax(-1)[0, 1:].logsumexp(-1).item()

    assert expected == pytest.approx(sparse_columns(_log_q(logits_NV), stored).log_q_NM[0, -1].item(), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_token_of_draft_probability_zero_is_finite(loss: Loss) -> None:
    """log q of -inf, at a stored token and in the rest."""
    log_q_NV = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]])
    stored = SparseTargets(
        torch.tensor([[1, 0]]),
        torch.tensor([[0.5, 0.3]]).log(),
        torch.tensor([2]),
        torch.tensor([0.2]).log(),
        torch.tensor([1]),
    )

    assert torch.isfinite(loss(sparse_columns(log_q_NV, stored))).all()


@pytest.mark.parametrize("loss", [forward_kl, lk_hybrid], ids=lambda loss: loss.__name__)
def test_a_token_of_target_probability_zero_has_no_own_term(loss: Loss) -> None:
    """On-policy: if almost no mass is outside the stored tokens, a draft token there is not a sample from the target and
    has no term of its own."""
    logits_NV = torch.tensor([[2.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    values = [
        loss(
            sparse_columns(
                logits_NV,
                SparseTargets(
                    torch.tensor([[0, 1]]),
                    torch.tensor([[0.7, 0.3]], dtype=torch.float64).log(),
                    torch.tensor([2]),
                    torch.tensor([math.log(1e-7)]),
                    torch.tensor([token]),
                ),
            )
        ).item()
        for token in (0, 2)
    ]

    assert values[0] == values[1]


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_that_the_draft_cannot_give_has_no_column(name: str) -> None:
    """Its logit is -inf, as of a head with a part of the vocabulary: neither a loss of thousands of nats nor a NaN."""
    logits_NV = torch.tensor([[1.0, -torch.inf, 0.5, 0.0, -0.5]], requires_grad=True)
    stored = SparseTargets(
        torch.tensor([[1, 2]]),
        torch.tensor([[0.5, 0.3]]).log(),
        torch.tensor([2]),
        torch.tensor([0.2]).log(),
        torch.tensor([1]),
    )
    loss_N = LOSSES[name](sparse_columns(logits_NV, stored, name in MERGED))
    (gradient_NV,) = torch.autograd.grad(loss_N.sum(), logits_NV)

    assert abs(float(loss_N.detach())) < 10
    assert bool(gradient_NV.isfinite().all())
    assert 0 == gradient_NV[0, 1]
    assert gradient_NV.abs().sum() > 0

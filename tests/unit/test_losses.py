"""Losses by hand, in expectation, and by finite differences."""

import math

import pytest
import torch

from pipeline.distillation.losses import cross_entropy, forward_kl


def _stored(p_NV: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    top = p_NV.topk(top_k, dim=-1)
    return top.indices, top.values.log(), (1 - top.values.sum(-1)).log()


def _pair(rows: int, vocabulary: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p_NV = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64).softmax(-1)
    return p_NV, torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)


def _full_kl(p_NV: torch.Tensor, logits_NV: torch.Tensor) -> torch.Tensor:
    return (p_NV * (p_NV.log() - logits_NV.log_softmax(-1))).sum(-1).mean()


def test_one_position_by_hand() -> None:
    """p = (1/2, 1/4, 1/4), q uniform, k = 1: the top, the tail as one bucket, and -log q of token 2 within it."""
    p_NV, logits_NV = torch.tensor([[0.5, 0.25, 0.25]]), torch.zeros(1, 3)
    top = _stored(p_NV, 1)
    buckets = 0.5 * math.log(0.5 / (1 / 3)) + 0.5 * math.log(0.5 / (2 / 3))

    assert buckets == pytest.approx(forward_kl(logits_NV, *top, torch.tensor([0])).item())
    assert buckets + math.log(2) == pytest.approx(forward_kl(logits_NV, *top, torch.tensor([2])).item())


def test_a_tail_of_one_token_leaves_the_whole_divergence() -> None:
    """With k = V - 1 nothing is truncated, whichever token was sampled."""
    p_NV, logits_NV = _pair(6, 5)
    least = p_NV.argmin(-1)

    for tokens_N in (least, p_NV.argmax(-1)):
        assert _full_kl(p_NV, logits_NV).item() == pytest.approx(
            forward_kl(logits_NV, *_stored(p_NV, 4), tokens_N).item()
        )


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_in_expectation_the_gradient_is_that_of_the_whole_divergence(top_k: int) -> None:
    """Summed over the tokens the target may sample, weighted by p, value (up to a constant) and gradient are the full
    KL's, although only k of 7 probabilities are stored."""
    p_NV, logits_NV = _pair(1, 7, seed=top_k)
    logits_NV.requires_grad_()
    top = _stored(p_NV, top_k)
    expected = sum(p_NV[0, x] * forward_kl(logits_NV, *top, torch.tensor([x])) for x in range(7))
    assert isinstance(expected, torch.Tensor)
    (gradient,) = torch.autograd.grad(expected, logits_NV)
    (full,) = torch.autograd.grad(_full_kl(p_NV, logits_NV), logits_NV)

    torch.testing.assert_close(full, gradient, atol=1e-12, rtol=0)
    tail_V = p_NV[0].clone()
    tail_V[top[0][0]] = 0
    inside_V = tail_V[tail_V > 0] / tail_V.sum()
    entropy = -(inside_V * inside_V.log()).sum() * tail_V.sum()
    assert _full_kl(p_NV, logits_NV).item() == pytest.approx((expected - entropy).item())


def test_mass_in_the_tail_is_not_free() -> None:
    """A draft that puts its mass outside the stored tokens pays for it: the tail's bucket is part of the loss."""
    p_NV = torch.tensor([[0.6, 0.3, 0.05, 0.05]], dtype=torch.float64)
    top, said = _stored(p_NV, 2), torch.tensor([0])
    same, spread = p_NV.log(), torch.tensor([[0.06, 0.03, 0.455, 0.455]], dtype=torch.float64).log()

    assert 0 == pytest.approx(forward_kl(same, *top, said).item(), abs=1e-12)
    by_hand = 0.9 * math.log(10) + 0.1 * math.log(0.1 / 0.91)
    assert by_hand == pytest.approx(forward_kl(spread, *top, said).item())


def test_gradients_equal_finite_differences() -> None:
    """Both losses, in double precision, with sampled tokens inside and outside the stored ones."""
    p_NV, logits_NV = _pair(4, 6)
    logits_NV.requires_grad_()
    top, tokens_N = _stored(p_NV, 2), torch.tensor([0, 1, 2, 3])

    assert torch.autograd.gradcheck(lambda logits: forward_kl(logits, *top, tokens_N), (logits_NV,))
    assert torch.autograd.gradcheck(lambda logits: cross_entropy(logits, tokens_N), (logits_NV,))


def test_a_negligible_tail_is_finite_in_single_precision() -> None:
    """Where the draft is sure of a stored token, 1 - sum(q) would be 0 or less; the loss and its gradient are numbers."""
    logits_NV = torch.tensor([[40.0, 0.0, 0.0, -40.0]], requires_grad=True)
    top = (torch.tensor([[0, 1]]), torch.tensor([[-1e-7, -60000.0]]), torch.tensor([math.log(1e-7)]))
    loss = forward_kl(logits_NV, *top, torch.tensor([3]))
    (gradient,) = torch.autograd.grad(loss, logits_NV)

    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


def test_cross_entropy_is_the_mean_over_positions() -> None:
    """-log q of the sampled tokens, by hand."""
    logits_NV = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])

    assert (math.log(2) + math.log(4)) / 2 == pytest.approx(cross_entropy(logits_NV, torch.tensor([1, 1])).item())

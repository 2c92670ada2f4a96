"""The chunked output layer and loss: value and gradients equal those of all logits at once."""

import pytest
import torch
from torch import nn

from pipeline.distillation import chunked_loss
from pipeline.distillation.chunked_loss import mean_loss, mean_loss_of_logits
from pipeline.distillation.losses import cross_entropy


@pytest.mark.parametrize("chunk", [1, 4, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("vocabulary", [11, 9])
@pytest.mark.parametrize("multiple", [1, 4])
def test_chunks_change_nothing(
    chunk: int, bias: bool, vocabulary: int, multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with columns beyond the shared vocabulary, which get no gradient, and a padded last chunk."""
    monkeypatch.setattr(chunked_loss, "_MULTIPLE", multiple)
    monkeypatch.setattr(chunked_loss, "_LEAST_ROWS", min(chunk, 2))
    monkeypatch.setattr(chunked_loss, "_LOGITS", chunk * vocabulary)
    torch.manual_seed(0)
    layer = nn.Linear(5, 11, bias=bias, dtype=torch.float64)
    hidden_NH = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    tokens_N = torch.randint(vocabulary, (10,))

    sizes: list[int] = []

    def loss_of(logits_NV: torch.Tensor, where: slice) -> torch.Tensor:
        sizes.append(len(logits_NV))
        return cross_entropy(logits_NV, tokens_N[where])

    inputs = [hidden_NH, *layer.parameters()]
    whole = mean_loss_of_logits(layer(hidden_NH)[:, :vocabulary], loss_of)
    expected = torch.autograd.grad(3 * whole, inputs)
    sizes.clear()
    loss = mean_loss(hidden_NH, layer, vocabulary, loss_of)
    actual = torch.autograd.grad(3 * loss, inputs)

    assert min(max(chunk, multiple), 10) == max(sizes)
    assert 10 == sum(sizes)
    assert whole.item() == pytest.approx(loss.item(), abs=1e-6)
    for own, ours in zip(expected, actual, strict=True):
        torch.testing.assert_close(own, ours, atol=1e-6, rtol=1e-5)


def test_a_frozen_head_gets_no_gradient() -> None:
    """As with adapters."""
    layer = nn.Linear(4, 6, bias=False).requires_grad_(False)
    hidden_NH = torch.randn(3, 4, requires_grad=True)
    mean_loss(hidden_NH, layer, 6, lambda logits, where: -logits[:, 0]).backward()

    assert layer.weight.grad is None
    assert hidden_NH.grad is not None


def test_products_are_in_the_dtype_of_autocast() -> None:
    """The hidden states' dtype without autocast."""
    found: list[torch.dtype] = []
    hidden_NH = torch.randn(3, 4, requires_grad=True)
    layer = nn.Linear(4, 6, bias=False)
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            mean_loss(hidden_NH, layer, 6, lambda logits, where: found.append(logits.dtype) or -logits[:, 0])

    assert [torch.float32, torch.bfloat16] == found

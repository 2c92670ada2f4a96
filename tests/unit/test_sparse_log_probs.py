"""What a sparse loss reads of logits, and the way back: by torch and by compiled code, against the definition."""

import pytest
import torch

from pipeline.distillation import sparse_log_probs
from pipeline.distillation.sparse_log_probs import Selected, select
from pipeline.native.build import compiler

WAYS = [
    "torch",
    pytest.param("compiled", marks=pytest.mark.skipif(compiler() is None, reason="no C compiler here")),
]


def _go(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "torch":
        monkeypatch.setattr(sparse_log_probs, "_library", lambda logits_NV: None)
    else:
        assert sparse_log_probs._library(torch.empty(0)) is not None


def _case(
    vocabulary: int, kept: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(vocabulary)
    logits_NV = (4 * torch.randn(5, vocabulary, generator=generator)).to(dtype)
    ids_NK = torch.stack([torch.randperm(vocabulary, generator=generator)[:kept] for _ in range(5)])
    tokens_N = torch.cat(
        [ids_NK[:2, 0], torch.randint(vocabulary, (3,), generator=generator)]
    )  # among the kept, and anywhere
    return logits_NV, ids_NK, tokens_N


def _plain(logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor) -> Selected:
    """By the definition, in fp64."""
    log_q_NV = logits_NV.double().log_softmax(-1)
    rest_NV = log_q_NV.scatter(-1, ids_NK, -torch.inf)
    return Selected(log_q_NV.gather(-1, ids_NK), log_q_NV.gather(-1, tokens_N[:, None])[:, 0], rest_NV.logsumexp(-1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [7, 16, 33, 1024, 5003])
def test_values_and_gradients_are_those_of_the_definition(
    vocabulary: int, dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole vectors or not, one block of sums or several; a kept token, another one, and the rest."""
    _go(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(vocabulary, 5, dtype)
    leaves = [logits_NV.clone().requires_grad_(), logits_NV.double().requires_grad_()]
    found, wanted = select(leaves[0], ids_NK, tokens_N), _plain(leaves[1], ids_NK, tokens_N)
    weights = [torch.randn(part.shape, generator=torch.Generator().manual_seed(1)) for part in found]
    for leaf, selected in zip(leaves, (found, wanted), strict=True):
        (gradient,) = torch.autograd.grad(
            sum((part * weight).sum() for part, weight in zip(selected, weights, strict=True)), leaf
        )
        leaf.grad = gradient

    for part, other in zip(found, wanted, strict=True):
        assert torch.float32 == part.dtype
        torch.testing.assert_close(part.double(), other, rtol=1e-5, atol=2e-5)
    assert dtype == leaves[0].grad.dtype
    rounding = 1e-5 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(leaves[0].grad.double(), leaves[1].grad, rtol=rounding, atol=rounding / 4)


@pytest.mark.parametrize("way", WAYS)
def test_a_rest_of_nothing_has_no_mass(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every token is kept."""
    _go(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(6, 6)

    assert [-torch.inf] * 5 == select(logits_NV, ids_NK, tokens_N).rest_log_q_N.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_small_rest_is_not_lost_to_rounding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - sum(q) of what is kept would be 0 or below in fp32."""
    _go(way, monkeypatch)
    logits_NV = torch.tensor([[0.0, 30.0, 0.0, 29.0, 0.0]])
    found = select(logits_NV, torch.tensor([[1, 3]]), torch.tensor([1]))
    wanted = _plain(logits_NV, torch.tensor([[1, 3]]), torch.tensor([1]))

    torch.testing.assert_close(found.rest_log_q_N.double(), wanted.rest_log_q_N, rtol=1e-5, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_token_that_is_not_there_raises(wrong: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or drawn: an error, not a read of other memory."""
    _go(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(6, 2)
    for ids, tokens in (
        (ids_NK.clone().index_fill_(1, torch.tensor([1]), wrong), tokens_N),
        (ids_NK, tokens_N * 0 + wrong),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            select(logits_NV, ids, tokens)


@pytest.mark.parametrize("way", WAYS)
def test_logits_that_are_no_numbers_stay_so(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer looks for them in the loss."""
    _go(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(40, 3)
    logits_NV[1, 17] = torch.nan
    found = select(logits_NV, ids_NK, tokens_N)

    assert [False, True, False, False, False] == found.token_log_q_N.isnan().tolist()
    assert [False, True, False, False, False] == found.rest_log_q_N.isnan().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_the_default_dtype_is_no_concern(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is handed to compiled code has the dtype it expects, whatever others have made the default."""
    _go(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = torch.randn(3, 40), torch.arange(12).view(3, 4), torch.tensor([1, 5, 30])
    expected = select(logits_NV, ids_NK, tokens_N)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = select(logits_NV, ids_NK, tokens_N)
    finally:
        torch.set_default_dtype(torch.float32)

    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)

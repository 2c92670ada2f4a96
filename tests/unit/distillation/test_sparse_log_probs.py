"""The log probabilities that a sparse loss reads, and their gradient: PyTorch and compiled code against the definition."""

import ctypes

import pytest
import torch

from pipeline.distillation import sparse_log_probs
from pipeline.distillation.sparse_log_probs import GatherLogProbs, SparseLogProbs, fused_log_probs, gather_log_probs
from pipeline.native.compiler import compiler

WAYS = [
    "torch",
    "fused",  # as it is written: `make test-gpu` tries what torch compiles
    pytest.param("compiled", marks=pytest.mark.skipif(compiler() is None, reason="no C compiler here")),
]


def _use(way: str, monkeypatch: pytest.MonkeyPatch) -> GatherLogProbs:
    if way == "fused":
        monkeypatch.setattr(sparse_log_probs, "_compiled", lambda function: function)
        return fused_log_probs
    if way == "torch":
        monkeypatch.setattr(sparse_log_probs, "_library", lambda logits_NV: None)
    else:
        assert sparse_log_probs._library(torch.empty(0)) is not None
    return gather_log_probs


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


def _plain(logits_NV: torch.Tensor, ids_NK: torch.Tensor, tokens_N: torch.Tensor) -> SparseLogProbs:
    """By the definition, in fp64."""
    log_q_NV = logits_NV.double().log_softmax(-1)
    rest_NV = log_q_NV.scatter(-1, ids_NK, -torch.inf)
    return SparseLogProbs(
        log_q_NV.gather(-1, ids_NK), log_q_NV.gather(-1, tokens_N[:, None])[:, 0], rest_NV.logsumexp(-1)
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [7, 16, 33, 1024, 5003])
def test_values_and_gradients_are_those_of_the_definition(
    vocabulary: int, dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For vocabularies that fill whole vectors or not, and that are summed in one block or in several."""
    gather = _use(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(vocabulary, 5, dtype)
    leaves = [logits_NV.clone().requires_grad_(), logits_NV.double().requires_grad_()]
    found, wanted = gather(leaves[0], ids_NK, tokens_N), _plain(leaves[1], ids_NK, tokens_N)
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
def test_an_empty_rest_has_no_mass(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is kept: the log of the rest is -inf."""
    gather = _use(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(6, 6)

    assert [-torch.inf] * 5 == gather(logits_NV, ids_NK, tokens_N).rest_log_q_N.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_small_rest_is_not_lost_to_rounding(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp32, 1 - sum(q) of the kept tokens would be 0 or negative."""
    gather = _use(way, monkeypatch)
    logits_NV = torch.tensor([[0.0, 30.0, 0.0, 29.0, 0.0]])
    found = gather(logits_NV, torch.tensor([[1, 3]]), torch.tensor([1]))
    wanted = _plain(logits_NV, torch.tensor([[1, 3]]), torch.tensor([1]))

    torch.testing.assert_close(found.rest_log_q_N.double(), wanted.rest_log_q_N, rtol=1e-5, atol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_token_outside_the_vocabulary_raises(wrong: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the kept tokens or the extra ones: an error, not a read of other memory."""
    gather = _use(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(6, 2)
    for ids, tokens in (
        (ids_NK.clone().index_fill_(1, torch.tensor([1]), wrong), tokens_N),
        (ids_NK, tokens_N * 0 + wrong),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            gather(logits_NV, ids, tokens)


@pytest.mark.parametrize("way", WAYS)
def test_nan_logits_give_nan(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer looks for NaN in the loss."""
    gather = _use(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = _case(40, 3)
    logits_NV[1, 17] = torch.nan
    found = gather(logits_NV, ids_NK, tokens_N)

    assert [False, True, False, False, False] == found.token_log_q_N.isnan().tolist()
    assert [False, True, False, False, False] == found.rest_log_q_N.isnan().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_the_default_dtype_does_not_matter(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for compiled code has the dtype it expects, whatever torch's default dtype is."""
    gather = _use(way, monkeypatch)
    logits_NV, ids_NK, tokens_N = torch.randn(3, 40), torch.arange(12).view(3, 4), torch.tensor([1, 5, 30])
    expected = gather(logits_NV, ids_NK, tokens_N)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = gather(logits_NV, ids_NK, tokens_N)
    finally:
        torch.set_default_dtype(torch.float32)

    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.skipif(compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize("name", ["log_prob_args", "gradient_args"])
def test_a_struct_that_differs_between_c_and_python_is_an_internal_error(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first field is renamed in Python: loading names the struct."""
    (_, kind), *others = sparse_log_probs._STRUCTURES[name]._fields_
    changed = type("Changed", (ctypes.Structure,), {"_fields_": [("other", kind), *others]})
    monkeypatch.setitem(sparse_log_probs._STRUCTURES, name, changed)

    with pytest.raises(AssertionError, match=f"struct {name} is not the same in C and in Python"):
        sparse_log_probs._load_library.__wrapped__(torch.float32)

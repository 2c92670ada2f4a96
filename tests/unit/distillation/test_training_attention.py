"""The attention of a model in training: its precision, and packed documents."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.distillation.training_attention import fast_attention, supports_document_masking
from pipeline.errors import UnderstudyError
from tests.fakes import family_model


def _logits(model: Any, packed: bool) -> torch.Tensor:
    ids_BT = torch.arange(12).view(2, 6) % 7
    positions = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 3]])} if packed else {}
    logits: torch.Tensor = model(input_ids=ids_BT, use_cache=False, **positions).logits
    return logits


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Mistral"])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_is_the_models_own(family: str, packed: bool) -> None:
    """Without autocast the output is unchanged, document masking works, and afterwards the implementation is restored."""
    model = family_model(family, torch.float32)
    own = _logits(model, packed)
    with fast_attention(model, bf16=True):
        fast = _logits(model, packed)
        assert "sdpa_fp32" == model.config._attn_implementation

    torch.testing.assert_close(own, fast)
    assert "sdpa" == model.config._attn_implementation
    torch.testing.assert_close(own, _logits(model, packed), rtol=0, atol=0)


def test_attention_is_in_single_precision_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention runs in fp32, other matmuls in bfloat16."""
    seen: list[torch.dtype] = []
    own = torch.nn.functional.scaled_dot_product_attention

    def watched(query: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        seen.append(query.dtype)
        return own(query, *rest, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model = family_model("Llama", torch.float32)
    with torch.autocast("cpu", torch.bfloat16), fast_attention(model, bf16=True):
        _logits(model, packed=True)

    assert {torch.float32} == set(seen)


@pytest.mark.parametrize(("bf16", "implementation"), [(False, "sdpa"), (True, "eager")])
def test_other_attention_is_left_alone(bf16: bool, implementation: str) -> None:
    """fp32 training and explicitly chosen implementations are not changed."""
    model = family_model("Llama", torch.float32)
    model.set_attn_implementation(implementation)
    with fast_attention(model, bf16):
        assert implementation == model.config._attn_implementation


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "GPT2"])
def test_attention_with_position_ids_masks_documents(family: str) -> None:
    """And training or eval mode is restored."""
    model = family_model(family, torch.float32).train()

    assert supports_document_masking(model, 40)
    assert model.training


class _RunsOn(nn.Module):
    """Half of what a token's embedding is comes from the token before it, wherever that stands: a short convolution."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        seen_BTH: torch.Tensor = self.embedding(ids_BT)
        return seen_BTH + torch.roll(seen_BTH, 1, dims=1) * (torch.arange(ids_BT.shape[1]) > 0)[None, :, None]


def test_a_convolution_does_not_mask_documents() -> None:
    """It ignores position_ids."""
    model = family_model("Llama", torch.float32)
    model.model.embed_tokens = _RunsOn(model.model.embed_tokens)

    assert not supports_document_masking(model, 40)


def test_a_model_that_takes_no_positions_shares_no_row() -> None:
    """Its forward has no position_ids argument."""
    inner = family_model("Llama", torch.float32)

    class NoPositions(nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return inner(input_ids=input_ids, use_cache=use_cache)

    assert not supports_document_masking(NoPositions(), 40)


def test_damaged_weights_are_said_before_training() -> None:
    """NaN logits cannot be compared; the error names what to look at."""
    model = family_model("Llama", torch.float32)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(UnderstudyError, match="weights are damaged"):
        supports_document_masking(model, 40)

"""fp32 attention during bfloat16 training."""

from typing import Any

import pytest
import torch

from pipeline.distillation.precision import fast_attention
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

"""Attention while training: the same mathematics, in the numbers that are fast."""

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
    """Without autocast nothing changes at all, documents of a row are as far apart, and afterwards the model is as it was."""
    model = family_model(family, torch.float32)
    own = _logits(model, packed)
    with fast_attention(model, bf16=True):
        fast = _logits(model, packed)
        assert "sdpa_fp32" == model.config._attn_implementation

    torch.testing.assert_close(own, fast)
    assert "sdpa" == model.config._attn_implementation
    torch.testing.assert_close(own, _logits(model, packed), rtol=0, atol=0)


def test_attention_is_in_single_precision_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow in bfloat16 is not done in it; the products around it are."""
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
    """Training in fp32 has no reason to change, and whoever chose an implementation has one."""
    model = family_model("Llama", torch.float32)
    model.set_attn_implementation(implementation)
    with fast_attention(model, bf16):
        assert implementation == model.config._attn_implementation

"""Whether a model supports document masking."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.distillation.document_masking import supports_document_masking
from pipeline.errors import UnderstudyError
from tests.fakes import family_model


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

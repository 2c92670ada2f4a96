"""Whether documents of one row stay apart in a model."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.distillation.document_masking import supports_document_masking
from tests.fakes import family_model


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "GPT2"])
def test_attention_that_is_told_positions_keeps_documents_apart(family: str) -> None:
    """And the model is left as it was found, training or not."""
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


def test_a_convolution_runs_on_from_one_document_to_the_next() -> None:
    """Positions say nothing to it."""
    model = family_model("Llama", torch.float32)
    model.model.embed_tokens = _RunsOn(model.model.embed_tokens)

    assert not supports_document_masking(model, 40)


def test_a_model_that_takes_no_positions_shares_no_row() -> None:
    """Its signature says so."""
    inner = family_model("Llama", torch.float32)

    class NoPositions(nn.Module):
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return inner(input_ids=input_ids, use_cache=use_cache)

    assert not supports_document_masking(NoPositions(), 40)

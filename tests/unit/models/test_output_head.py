"""The output layer is found where logits are nothing but its product with the last hidden state."""

from typing import Any

import pytest
import torch
from torch import nn

from pipeline.models.output_head import linear_head, output_head
from tests.fakes import family_model, table_model


@pytest.mark.parametrize(
    ("family", "settings"),
    [("Llama", {}), ("Llama", {"tie_word_embeddings": True}), ("Qwen3", {}), ("Llama", {"attention_dropout": 0.5})],
)
def test_a_plain_head_is_found(family: str, settings: dict[str, Any]) -> None:
    """And training or eval mode is restored."""
    model = family_model(family, torch.float32, **settings).train()

    assert linear_head(model) is model.lm_head
    assert model.training


def test_a_head_that_is_more_than_a_matrix_is_left_to_the_model() -> None:
    """Soft-capped or scaled logits are not the plain matmul."""
    capped = family_model("Gemma2", torch.float32, final_logit_softcapping=1.0, head_dim=8)
    scaled = family_model("Llama", torch.float32)
    own = scaled.forward

    def forward(**kwargs: Any) -> Any:
        output = own(**kwargs)
        output.logits = output.logits * 1.1
        return output

    scaled.forward = forward

    assert linear_head(capped) is None
    assert output_head(capped) is None
    assert output_head(scaled) is None
    assert output_head(table_model(8, 0)) is None  # it has no layers


class _Packed(nn.Linear):
    """A layer whose weight is not to be read as a matrix, though its products are the same."""


def test_the_weights_of_a_head_of_another_type_are_not_read() -> None:
    """For example a quantized layer, which is a subclass. It can be applied to hidden states all the same."""
    model = family_model("Llama", torch.float32)
    model.lm_head.__class__ = _Packed

    assert linear_head(model) is None
    assert output_head(model) is model.lm_head

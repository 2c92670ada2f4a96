"""Compute per token, from model configs."""

import pytest

from pipeline.latency.costs.flops import macs_per_token, operations_factor
from tests.fakes import family_model

LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def test_macs_are_the_weights_used_by_a_token() -> None:
    """Every matrix once, no embedding, active experts only."""
    model = family_model("Llama", head_dim=16)
    linears = [name for name, _ in model.named_parameters() if "proj" in name or "lm_head" in name]
    weights = sum(model.get_parameter(name).numel() for name in linears)
    mixture = LLAMA_8B | {"num_experts_per_tok": 2, "num_local_experts": 8}

    assert weights == macs_per_token(model.config.to_dict())
    dense, mixed = macs_per_token(LLAMA_8B), macs_per_token(mixture)
    assert dense is not None
    assert mixed == dense + 32 * 3 * 4096 * 14336


@pytest.mark.parametrize("config", [{}, {"n_embd": 768}, LLAMA_8B | {"hidden_size": None}])
def test_other_shapes_have_none_to_state(config: dict[str, object]) -> None:
    """No guess."""
    assert macs_per_token(config) is None


def test_leviathans_operations_factor() -> None:
    """At acceptance 0.8, gamma 5 and a draft of a tenth: (0.5 + 6) / 3.69; a draft that is always right costs its own passes."""
    omega = (1 - 0.8**6) / 0.2

    assert pytest.approx(6.5 / omega) == operations_factor(omega, 5, 0.1)
    assert pytest.approx(1 + 0.5 / 6) == operations_factor(6, 5, 0.1)

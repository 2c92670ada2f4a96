"""Arithmetic that a pair asks for. Pure.

It is told from a model's config as it is saved, for decoders with attention over heads and a gated MLP, dense or of
experts; anything else has none to state.
"""

from collections.abc import Mapping
from typing import Any


def macs_per_token(config: Mapping[str, Any]) -> float | None:
    """Multiplications of one token with weights, head included, attention to the context left out. None for a
    config of unknown names."""
    sizes = _sizes(config)
    if sizes is None:
        return None
    hidden, inner = sizes["hidden"], sizes["inner"]
    attention = 2 * hidden * sizes["queries"] + 2 * hidden * sizes["keys"]
    return float(sizes["layers"] * (attention + 3 * hidden * inner) + hidden * sizes["vocabulary"])


def operations_factor(tokens_per_round: float, gamma: int, ratio: float) -> float:
    """Arithmetic of an emitted token over plain decoding's (Leviathan et al. 2023, theorem 3.11): a round is gamma draft passes,
    each `ratio` of a target's, and a target's pass over gamma + 1 tokens."""
    return (gamma * ratio + gamma + 1) / tokens_per_round


def _sizes(config: Mapping[str, Any]) -> dict[str, int] | None:
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        width = int(config.get("head_dim") or hidden // heads)
        experts = config.get("num_experts_per_tok")
        inner = config.get("moe_intermediate_size") if experts else None
        return {
            "layers": int(config["num_hidden_layers"]),
            "hidden": hidden,
            "queries": heads * width,
            "keys": int(config.get("num_key_value_heads") or heads) * width,
            "inner": int(inner or config["intermediate_size"]) * int(experts or 1),
            "vocabulary": int(config["vocab_size"]),
        }
    except (KeyError, TypeError):
        return None

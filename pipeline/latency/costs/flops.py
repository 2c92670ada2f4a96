"""Compute of a pair per token, from model configs. Pure.

Supports decoders with multi-head or grouped-query attention and a gated MLP, dense or mixture of experts; other configs give
None.
"""

from collections.abc import Mapping
from typing import Any


def macs_per_token(config: Mapping[str, Any]) -> float | None:
    """Multiply-accumulate operations (FLOPs / 2) of one token with the weights, LM head included, attention over the context
    left out. None if the config lacks a key."""
    sizes = _sizes(config)
    if sizes is None:
        return None
    hidden, inner = sizes["hidden"], sizes["inner"]
    attention = 2 * hidden * sizes["queries"] + 2 * hidden * sizes["keys"]
    return float(sizes["layers"] * (attention + 3 * hidden * inner) + hidden * sizes["vocabulary"])


def operations_factor(tokens_per_round: float, gamma: int, ratio: float) -> float:
    """FLOPs per emitted token relative to plain decoding (Leviathan et al. 2023, theorem 3.11): a round is gamma draft passes,
    each with `ratio` of the target's FLOPs per token, and one target pass over gamma + 1 tokens."""
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

"""What tables call the methods and pairs of the distillation benchmark, and its aims."""

from collections.abc import Mapping
from typing import Any

AIMS = {  # points ahead, by peer and regime
    ("trl_sft", "near"): 6.0,
    ("trl_sft", "moved"): 2.0,
    ("trl_gkd", "near"): 3.0,
    ("trl_gkd", "moved"): 3.0,
}
ORIGINAL, FINE_TUNED = "original target", "fine-tuned target"
REGIME_LABELS = {"near": ORIGINAL, "moved": FINE_TUNED}
_LABELS = {
    "stock": "base draft",
    "shipped": "as shipped: rate by trials, prompts",
    "shipped_without_prompts": "as shipped, without prompts",
    "trl_sft": "SFT (TRL)",
    "trl_gkd": "GKD (TRL)",
    "online": "online forward KL",
    "bare_loop": "bare torch loop",
    "lk_hybrid_muon": "lk_hybrid, Muon",
    "forward_kl_muon": "forward_kl, Muon",
    "cross_entropy_muon": "cross_entropy, Muon",
    "pruned": "target's layers",
    "alone": "trained alone",
}


def label(method: str) -> str:
    """Of a method in a table; `near/x` and `moved/x` name the target too."""
    regime, _, name = method.rpartition("/")
    target = f"{REGIME_LABELS[regime]}, " if regime else ""
    return target + _LABELS.get(name, name)


def by_seed(row: Mapping[str, Any]) -> str:
    """Its acceptance rates."""
    return ", ".join(f"{value:.3f}" for value in row["by_seed"])

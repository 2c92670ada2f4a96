"""The gain that a decision is based on, in a few words."""

from collections.abc import Mapping
from typing import Any


def gain_in_words(decision: Mapping[str, Any]) -> str:
    """Such as `gain 3.1 points [2.0, 4.2] over the champion`; empty if the decision has no interval."""
    rule: Mapping[str, Any] = next((rule for rule in decision.get("rules", ()) if rule["name"] == "min_gain"), {})
    figures = [rule[name] for name in ("figure", "low", "high") if rule.get(name) is not None]
    if len(figures) < 3:
        return ""
    figure, low, high = (f"{100 * value:.1f}" for value in figures)
    against = "champion" if decision.get("baseline") == "champion" else "base draft"
    return f"gain {figure} points [{low}, {high}] over the {against}"

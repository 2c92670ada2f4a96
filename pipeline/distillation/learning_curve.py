"""The learning curve: dev acceptance after training on subsets of the completions, and its extrapolation. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

from pipeline.store.parsing import Count, Number, format_of, stored

CURVE = "learning_curve.json"


@stored(kw_only=False)
class CurvePoint:
    """One training on a subset of the prompts, with the same settings."""

    completions: Count
    tokens: Count  # completion tokens
    dev_acceptance_rate: Number
    dev_tokens_per_target_call: Number


@stored(name="learning curve", kw_only=False)
class LearningCurve:
    """The content of `learning_curve.json`, by completions. `next_doubling`: see the function."""

    points: list[CurvePoint]
    next_doubling: Number | None


def find_curve(artifact: Path) -> LearningCurve | None:
    """The curve in a `distill` artifact; None if it has none. UnderstudyError naming a damaged file."""
    return format_of(LearningCurve).find(artifact / CURVE)


def next_doubling(points: Sequence[CurvePoint]) -> float | None:
    """The predicted gain in dev acceptance from doubling the completions of the largest point, if the gains per doubling keep
    shrinking at the same rate. None with fewer than two points; with two points it is an upper estimate."""
    ordered = sorted(points, key=lambda point: point.completions)
    gains = [
        (after.dev_acceptance_rate - before.dev_acceptance_rate) / log2(after.completions / before.completions)
        for before, after in pairwise(ordered)
        if after.completions > before.completions
    ]
    if not gains:
        return None
    shrinks = min(max(gains[-1] / gains[-2], 0.0), 1.0) if len(gains) > 1 and gains[-2] > 0 else 1.0
    return max(gains[-1], 0.0) * shrinks


def curve_json(points: Sequence[CurvePoint]) -> dict[str, Any]:
    """The content of `learning_curve.json`."""
    return asdict(LearningCurve(sorted(points, key=lambda point: point.completions), next_doubling(points)))

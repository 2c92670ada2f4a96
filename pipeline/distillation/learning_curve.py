"""The learning curve: the acceptance a draft reaches on parts of the completions, and what more of them would bring. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # whoever shows a curve should not wait for torch
    from pipeline.generation.completion_store import StoredCompletion

CURVE = "learning_curve.json"


@dataclass(frozen=True)
class Point:
    """A training on a part of the prompts, all else equal."""

    completions: int
    tokens: int  # that the target said
    dev_acceptance: float
    dev_omega: float


def part(spoken: "Sequence[StoredCompletion]", share: float) -> "list[StoredCompletion]":
    """The completions of a share of the prompts; of two shares, the smaller lies within the larger. The share is of each
    domain, but for rounding."""
    chosen: set[str] = set()
    for domain in {item.domain for item in spoken}:
        prompts = sorted({item.id for item in spoken if item.domain == domain}, key=_order)
        chosen |= set(prompts[: max(1, round(share * len(prompts)))])
    return [item for item in spoken if item.id in chosen]


def next_doubling(points: Sequence[Point]) -> float | None:
    """What twice the completions of the largest point would add to dev acceptance, if gains a doubling go on shrinking as they
    did; None with fewer than two points. With two there is nothing to see the shrinking by, so it is an upper estimate."""
    ordered = sorted(points, key=lambda point: point.completions)
    gains = [
        (after.dev_acceptance - before.dev_acceptance) / log2(after.completions / before.completions)
        for before, after in pairwise(ordered)
        if after.completions > before.completions
    ]
    if not gains:
        return None
    shrinks = min(max(gains[-1] / gains[-2], 0.0), 1.0) if len(gains) > 1 and gains[-2] > 0 else 1.0
    return max(gains[-1], 0.0) * shrinks


def curve_json(points: Sequence[Point]) -> dict[str, Any]:
    """The content of `learning_curve.json`."""
    return {
        "points": [asdict(point) for point in sorted(points, key=lambda point: point.completions)],
        "next_doubling": next_doubling(points),
    }


def _order(prompt: str) -> bytes:
    """A prompt's place, whatever the others."""
    return hashlib.sha256(f"learning curve {prompt}".encode()).digest()

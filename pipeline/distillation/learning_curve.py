"""The learning curve: dev acceptance after training on subsets of the completions, and its extrapolation. Pure."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import chosen, column
from pipeline.store.parsing import Count, Number, format_of, stored

CURVE = "learning_curve.json"


def subset(completions: Sequence[StoredCompletion], share: float) -> Sequence[StoredCompletion]:
    """The completions of a share of each domain's prompts. The subset of a smaller share is contained in that of a larger one."""
    id_N, domain_N = column(completions, "id"), column(completions, "domain")
    is_chosen_N = np.zeros(len(id_N), dtype=bool)
    for domain in np.unique(domain_N):
        prompts = np.unique(id_N[domain_N == domain])
        is_chosen_N |= np.isin(id_N, _by_digest(prompts)[: max(1, round(share * len(prompts)))])
    return chosen(completions, np.flatnonzero(is_chosen_N))


def _by_digest(prompts: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """By a digest of each, so that the order of two does not depend on the others."""
    digests = b"".join(hashlib.sha256(b"learning curve " + prompt).digest() for prompt in prompts.tolist())
    words_PW = np.frombuffer(digests, dtype=">u8").reshape(len(prompts), -1)
    return prompts[np.lexsort(words_PW.T[::-1])]


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

"""Rows of a log whose requests had low acceptance are drawn more often in the training. Pure."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion


def repeat_low_acceptance(completions: Sequence[StoredCompletion], weight: float, seed: int) -> list[StoredCompletion]:
    """`completions`, each at least once, and those of conversations with low acceptance more often, up to `weight` times.

    The expected number of copies falls linearly from `weight` for the conversation with the lowest acceptance to 1 for that with
    the highest, by rank: ranks do not depend on the draft length or on how an engine counts. The turns of a conversation, whose
    acceptance is the mean over its prompts, are repeated together. Completions without a known acceptance have the mean number
    of copies, so that their share stays. Fractions are rounded up or down by `seed`. UsageError where none is known.
    """
    if weight == 1:
        return list(completions)
    names = sorted({item.conversation for item in completions})
    copies = dict(zip(names, _copies(_acceptance_C(completions, names), weight, seed).tolist(), strict=True))
    return [item for item in completions for _ in range(copies[item.conversation])]


def not_known() -> UsageError:
    """Where no train prompt has the acceptance of its request."""
    return UsageError(
        "distill.low_acceptance_weight: no train prompt has the acceptance of its request; log the statistics of requests "
        "(docs/logs.md), or set it to 1"
    )


def _acceptance_C(completions: Sequence[StoredCompletion], names: Sequence[str]) -> NDArray[np.float64]:
    """Of each of these C conversations, the mean over its prompts; NaN where no prompt has one."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for item in completions:
        if item.acceptance is not None:
            found[item.conversation][item.id] = item.acceptance
    if not found:
        raise not_known()
    return np.array([np.mean(list(found[name].values())) if name in found else np.nan for name in names])


def _copies(acceptance_C: NDArray[np.float64], weight: float, seed: int) -> NDArray[np.int64]:
    """How often each of C conversations is there."""
    known_C = ~np.isnan(acceptance_C)
    ordered = np.sort(acceptance_C[known_C])
    below_K = np.searchsorted(ordered, acceptance_C[known_C], "left")
    above_K = len(ordered) - np.searchsorted(ordered, acceptance_C[known_C], "right")
    rank_C = np.full(len(acceptance_C), 0.5)
    if len(ordered) > 1:  # equal rates have equal ranks
        rank_C[known_C] = 0.5 + (above_K - below_K) / (2 * (len(ordered) - 1))
    wanted_C = 1 + (weight - 1) * rank_C
    return np.floor(wanted_C + np.random.default_rng([seed, 0]).random(len(wanted_C))).astype(np.int64)

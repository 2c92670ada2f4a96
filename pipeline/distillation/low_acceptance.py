"""Rows of a log whose requests had low acceptance are drawn more often in the training. Pure."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UsageError
from pipeline.generation.completion_store import StoredCompletion
from pipeline.generation.stored_completions import chosen, column


def repeat_low_acceptance(
    completions: Sequence[StoredCompletion], weight: float, seed: int
) -> Sequence[StoredCompletion]:
    """`completions`, each at least once, and those of conversations with low acceptance more often, up to `weight` times.

    The expected number of copies falls linearly from `weight` for the conversation with the lowest acceptance to 1 for that with
    the highest, by rank: ranks do not depend on the draft length or on how an engine counts. The turns of a conversation, whose
    acceptance is the mean over its prompts, are repeated together. Completions without a known acceptance have the mean number
    of copies, so that their share stays. Fractions are rounded up or down by `seed`. UsageError where none is known.
    """
    if weight == 1:
        return completions
    names, conversation_N = np.unique(column(completions, "conversation"), return_inverse=True)
    copies_C = _copies(_acceptance_C(completions, conversation_N, len(names)), weight, seed)
    return chosen(completions, np.repeat(np.arange(len(completions)), copies_C[conversation_N]))


def not_known() -> UsageError:
    """Where no train prompt has the acceptance of its request."""
    return UsageError(
        "distill.low_acceptance_weight: no train prompt has the acceptance of its request; log the statistics of requests "
        "(docs/logs.md), or set it to 1"
    )


def _acceptance_C(
    completions: Sequence[StoredCompletion], conversation_N: NDArray[np.intp], count: int
) -> NDArray[np.float64]:
    """Of each of `count` conversations, the mean over its prompts; NaN where no prompt has one. `conversation_N`: that of each
    completion."""
    acceptance_N, id_N = column(completions, "acceptance").astype(np.float64), column(completions, "id")
    known = np.flatnonzero(~np.isnan(acceptance_N))
    if not len(known):
        raise not_known()
    known = known[np.argsort(conversation_N[known], kind="stable")]
    edges = np.flatnonzero(np.diff(conversation_N[known], prepend=-1, append=count))
    found_C = np.full(count, np.nan)
    for begin, end in pairwise(edges):
        own = known[begin:end]
        by_prompt = dict(zip(id_N[own].tolist(), acceptance_N[own].tolist(), strict=True))
        found_C[conversation_N[own[0]]] = np.mean(list(by_prompt.values()))
    return found_C


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

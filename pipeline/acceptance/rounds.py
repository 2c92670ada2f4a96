"""Exact expected target calls from acceptance probabilities, for any draft length. numpy only.

Given a completion that the target produced, the draft token at position t is accepted with probability a_t, independently
of the others. A round that starts at t drafts k tokens; it ends after the first rejection, or one token after the k-th
acceptance. The probability that a round starts at t is computed in one pass from left to right (docs/examination.md).
`pipeline/acceptance/moments.py` has the second moments.

Of some kinds of drafts a depends on where the round started, so on the start and the place in its block. Such arrays are
a_BTP: entry [b, t, j] is for token t at place j of a block, of a round that starts at token t - j. All functions take them, or
a_BT, which is the same at every place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Acceptance:
    """The probability that each token of a completion is accepted, lookahead included.

    `a` and `drafted` have an entry for gamma 1, 2, ..., or one that holds for every gamma. Entry `a` is (T,) for a draft of which
    acceptance does not depend on the start of the round, else (T, P): [t, j] is for token t at place j of its block, of a round
    that starts at token t - j. `drafted`: how many tokens a round drafts that starts at each token, (T,); None: always gamma.
    """

    a: Sequence[Floats]
    drafted: Sequence[NDArray[Any]] | None = None

    def at(self, gamma: int) -> Floats:
        return self.a[min(gamma, len(self.a)) - 1]

    def drafted_at(self, gamma: int) -> NDArray[Any] | None:
        return None if self.drafted is None else self.drafted[min(gamma, len(self.drafted)) - 1]


@dataclass(frozen=True)
class Convention:
    """How an engine counts. `start`: the first token that a round can produce (1 if the prefill emits token 0);
    `clipped`: blocks are clipped at the end of the completion; `prefill_call`: the prefill counts as one call per prompt."""

    name: str
    start: int
    clipped: bool
    prefill_call: bool


CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention("user", start=1, clipped=True, prefill_call=True),
        Convention("transformers", start=0, clipped=True, prefill_call=False),
        Convention("vllm", start=1, clipped=False, prefill_call=True),
        Convention("openvino", start=1, clipped=True, prefill_call=True),
    )
}


@dataclass(frozen=True)
class ExpectedRounds:
    """Expected counts for each completion (B)."""

    rounds_B: Floats  # target calls after the prefill
    calls_B: Floats  # target calls as the convention counts them
    proposed_B: Floats  # draft tokens
    accepted_BG: Floats  # rounds whose draft token i was accepted, for i < gamma
    starts_BT: Floats  # probability that a round starts at each token


def expected_rounds(
    a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention, drafted_BT: Lengths | None = None
) -> ExpectedRounds:
    """Expected counts over the tokens convention.start .. length - 1 of each completion.

    a_BT: (B, T) or (B, T, P), acceptance probability of each token; padding beyond a row's length is ignored. An unclipped
    convention needs T >= length + gamma - 1, because the engine drafts past the end and counts the tokens accepted there.
    `drafted_BT`: the most tokens that a round drafts which starts at each token; None: gamma. It decides `proposed_B` alone:
    what a round does not draft has probability 0, which ends the round as a rejection does.
    Raises ValueError for gamma < 1, an empty row, or rows too short for the convention.
    """
    rows = sort_by_length(a_BT, lengths_B, gamma, convention)
    drafted_TB = None if drafted_BT is None else drafted_BT[rows.order_B].T
    batch = len(lengths_B)
    rounds_B, proposed_B, accepted_GB = np.zeros(batch), np.zeros(batch), np.zeros((gamma, batch))
    # under_way_JB[j]: probability that a round reaches token t with its first j draft tokens accepted. For j = gamma,
    # token t is the round's bonus token.
    under_way_JB = np.zeros((gamma + 1, batch))
    under_way_JB[0] = convention.start < rows.lengths_B
    starts_TB = np.zeros((len(rows.a_TPB), batch))
    for t in range(convention.start, len(rows.a_TPB)):
        n = rows.running_T[t]
        under_JB, own_B, a_PB = under_way_JB[:, :n], rows.lengths_B[:n], rows.a_TPB[t, :, :n]
        rounds_B[:n] += under_JB[0]
        starts_TB[t, :n] = under_JB[0]
        drafted_B = drafted_tokens(t, own_B, gamma, convention)
        if drafted_TB is not None:
            drafted_B = np.minimum(drafted_B, drafted_TB[t, :n] if t < len(drafted_TB) else 0)
        proposed_B[:n] += under_JB[0] * drafted_B
        # Added up first over the places at which a is the same: all, or each alone.
        at_places_PB = under_JB[:-1].reshape(len(a_PB), -1, n).sum(1)
        next_start_B = (at_places_PB * (1 - a_PB)).sum(0) + under_JB[-1]
        under_JB[1:] = under_JB[:-1] * a_PB
        accepted_GB[:, :n] += under_JB[1:]
        under_JB[0] = np.where(t + 1 < own_B, next_start_B, 0.0)
    rounds_B = rows.unsort(rounds_B)
    return ExpectedRounds(
        rounds_B,
        rounds_B + convention.prefill_call,
        rows.unsort(proposed_B),
        rows.unsort(accepted_GB).T.copy(),
        rows.unsort(starts_TB).T.copy(),
    )


@dataclass(frozen=True)
class SortedCompletions:
    """Completions sorted by length, longest first, so that at each token the unfinished ones are the leading columns."""

    a_TPB: Floats  # 0 at tokens that no round can draft; P is gamma, or 1 where all places are the same
    lengths_B: Lengths
    running_T: list[int]  # number of completions in which a round can reach token t
    order_B: Lengths  # index of each column in the caller's order

    def unsort(self, values_B: Floats) -> Floats:
        """`values_B`, whose last axis is columns, in the caller's order."""
        found_B = np.empty_like(values_B)
        found_B[..., self.order_B] = values_B
        return found_B


def sort_by_length(a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention) -> SortedCompletions:
    """Sort, and set a_t to 0 at tokens that no round can draft: the last token under a clipped convention, tokens from
    gamma - 1 past the end under an unclipped one. Arguments and errors as in `expected_rounds`."""
    a_BTP = np.atleast_3d(a_BT)
    batch, width, places = a_BTP.shape
    if 1 < places < gamma:
        raise ValueError(f"{places} places were given for gamma {gamma}")
    if gamma < 1 or batch == 0 or int(lengths_B.min(initial=1)) < 1:
        raise ValueError("gamma must be at least 1, and every completion at least one token long")
    reach = int(lengths_B.max()) + (0 if convention.clipped else gamma - 1)
    if width < reach:
        raise ValueError(f"{width} tokens were given, but the convention '{convention.name}' needs {reach}")
    order_B = np.argsort(-lengths_B, kind="stable")
    sorted_B = lengths_B[order_B]
    end_B = sorted_B + (-1 if convention.clipped else gamma - 1)
    tokens_T1 = np.arange(reach)[:, None]
    a_TPB = np.zeros((reach, min(places, gamma), batch))
    np.copyto(a_TPB, a_BTP[order_B, :reach, :gamma].transpose(1, 2, 0), where=tokens_T1[:, None] < end_B)
    running_T = (tokens_T1 < np.maximum(end_B, sorted_B)).sum(1)
    return SortedCompletions(a_TPB, sorted_B, running_T.tolist(), order_B)


def drafted_tokens(t: int, lengths_B: Lengths, gamma: int, convention: Convention) -> Lengths:
    """The number of tokens drafted by a round that starts at token t, (B,)."""
    return np.minimum(np.maximum(lengths_B - 1 - t, 0), gamma) if convention.clipped else np.full(len(lengths_B), gamma)


def examined_tokens(
    a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention, drafted_BT: Lengths | None, starts_BT: Floats
) -> tuple[Floats, Floats]:
    """For each token the probabilities that it is accepted as a draft token, and that it is accepted or the first rejection of a
    round, (B, T) each. Tokens after a rejection are not examined. `starts_BT`: of `expected_rounds`, with the same arguments."""
    a_BTP, (batch, reach) = np.atleast_3d(a_BT), starts_BT.shape
    starts_T = np.arange(reach)
    most_BT = np.full((batch, reach), gamma) if drafted_BT is None else np.minimum(drafted_BT[:, :reach], gamma)
    if convention.clipped:
        most_BT = np.minimum(most_BT, np.maximum(lengths_B[:, None] - 1 - starts_T, 0))
    under_way_BT = starts_BT.copy()  # by the start: the probability that the round is accepted up to a place
    accepted_BT, examined_BT = np.zeros((batch, reach)), np.zeros((batch, reach))
    for place in range(min(gamma, reach)):
        drafts_BT = under_way_BT[:, : reach - place] * (place < most_BT[:, : reach - place])
        examined_BT[:, place:] += drafts_BT
        under_way_BT = drafts_BT * a_BTP[:, place:reach, min(place, a_BTP.shape[2] - 1)]
        accepted_BT[:, place:] += under_way_BT
    return accepted_BT, examined_BT


def iid_tokens_per_call(alpha: float, gamma: int) -> float:
    """(1 - alpha^(gamma+1)) / (1 - alpha): Omega under the assumption that acceptance is i.i.d. (Leviathan et al. 2023,
    eq. 1). Reported beside the exact figure."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)

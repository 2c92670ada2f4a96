"""From acceptance probabilities to expected target calls, exactly, for any draft length. numpy only.

Given a completion that the target produced, its position t would have been accepted with probability a_t, independently
of the others. A round that starts at t drafts k tokens; it ends behind the first rejection, or one past the k-th
acceptance. The probability that some round starts at t follows by one pass from left to right (docs/examination.md).
`pipeline/acceptance/moments.py` has the second moments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]


@dataclass(frozen=True)
class Convention:
    """How an engine counts. `start`: first token that a round may produce (1 where the prefill emits token 0);
    `clipped`: a block never reaches past the end; `prefill_call`: the prefill is one more call a prompt."""

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
class Rounds:
    """Expected counts, one entry a completion (B)."""

    rounds_B: Floats  # target calls after the prefill
    calls_B: Floats  # target calls as the convention counts them
    proposed_B: Floats  # drafted tokens
    accepted_BG: Floats  # rounds whose drafted token i was accepted, for i < gamma


def expected_rounds(a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention) -> Rounds:
    """Expected counts over the tokens convention.start .. length - 1 of each completion.

    a_BT: (B, T), acceptance probability of each token; rows may be padded with anything beyond their length. An
    unclipped convention needs T >= length + gamma - 1: the engine drafts past the end, and counts what stands there.
    Raises ValueError for gamma < 1, an empty row, or rows too short for the convention.
    """
    rows = judged(a_BT, lengths_B, gamma, convention)
    batch = len(lengths_B)
    rounds_B, proposed_B, accepted_GB = np.zeros(batch), np.zeros(batch), np.zeros((gamma, batch))
    # under_way_JB[j]: probability that token t is looked at by a round whose first j drafted tokens stand. A round that
    # has all gamma of them makes token t itself.
    under_way_JB = np.zeros((gamma + 1, batch))
    under_way_JB[0] = convention.start < rows.lengths_B
    for t in range(convention.start, len(rows.a_TB)):
        n = rows.running_T[t]
        under_JB, own_B, a_B = under_way_JB[:, :n], rows.lengths_B[:n], rows.a_TB[t, :n]
        rounds_B[:n] += under_JB[0]
        proposed_B[:n] += under_JB[0] * drafted(t, own_B, gamma, convention)
        ends_B = under_JB[:-1].sum(0) * (1 - a_B) + under_JB[-1]
        under_JB[1:] = under_JB[:-1] * a_B
        accepted_GB[:, :n] += under_JB[1:]
        under_JB[0] = np.where(t + 1 < own_B, ends_B, 0.0)
    rounds_B = rows.as_given(rounds_B)
    return Rounds(
        rounds_B, rounds_B + convention.prefill_call, rows.as_given(proposed_B), rows.as_given(accepted_GB).T.copy()
    )


@dataclass(frozen=True)
class Judged:
    """Completions as the programmes read them: longest first, so that those which still run are the leading columns."""

    a_TB: Floats  # 0 at every token that no round may draft
    lengths_B: Lengths
    running_T: list[int]  # how many completions a round may look at token t of
    order_B: Lengths  # where each column stood in what was given

    def as_given(self, values_B: Floats) -> Floats:
        """Values by column (the last axis) in the order of the completions given."""
        found_B = np.empty_like(values_B)
        found_B[..., self.order_B] = values_B
        return found_B


def judged(a_BT: Floats, lengths_B: Lengths, gamma: int, convention: Convention) -> Judged:
    """What no round may draft is the last token under a clipped convention, and what lies gamma - 1 past the end under
    another. Arguments and errors as `expected_rounds`."""
    batch, width = a_BT.shape
    if gamma < 1 or batch == 0 or int(lengths_B.min(initial=1)) < 1:
        raise ValueError("gamma must be at least 1, and every completion at least one token long")
    reach = int(lengths_B.max()) + (0 if convention.clipped else gamma - 1)
    if width < reach:
        raise ValueError(f"{width} tokens are given and {reach} are needed under the convention '{convention.name}'")
    order_B = np.argsort(-lengths_B, kind="stable")
    sorted_B = lengths_B[order_B]
    end_B = sorted_B + (-1 if convention.clipped else gamma - 1)
    places_T1 = np.arange(reach)[:, None]
    a_TB: Floats = np.where(places_T1 < end_B, a_BT[order_B, :reach].T, 0.0)
    running_T = (places_T1 < np.maximum(end_B, sorted_B)).sum(1)
    return Judged(a_TB, sorted_B, running_T.tolist(), order_B)


def drafted(t: int, lengths_B: Lengths, gamma: int, convention: Convention) -> Lengths:
    """Tokens that a round drafts which starts at token t, (B,)."""
    return np.minimum(np.maximum(lengths_B - 1 - t, 0), gamma) if convention.clipped else np.full(len(lengths_B), gamma)


def iid_tokens_per_call(alpha: float, gamma: int) -> float:
    """(1 - alpha^(gamma+1)) / (1 - alpha): Omega if acceptance were the same and independent everywhere
    (Leviathan et al. 2023, eq. 1). Shown beside the exact figure; acceptance is neither."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)

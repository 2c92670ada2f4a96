"""From acceptance probabilities to expected target calls, exactly, for any draft length. numpy only.

Given a completion that the target produced, its position t would have been accepted with probability a_t, independently
of the others. A round that starts at t drafts k tokens; it ends behind the first rejection, or one past the k-th
acceptance. R[t], the probability that some round starts at t, follows by one pass from left to right (DESIGN section 2).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def expected_rounds(a_BT: Floats, lengths_B: NDArray[np.int64], gamma: int, convention: Convention) -> Rounds:
    """Expected counts over the tokens convention.start .. length - 1 of each completion.

    a_BT: (B, T), acceptance probability of each token; rows may be padded with anything beyond their length. An
    unclipped convention needs T >= length + gamma - 1: the engine drafts past the end, and counts what stands there.
    Raises ValueError for gamma < 1, an empty row, or rows too short for the convention.
    """
    batch, width = a_BT.shape
    if gamma < 1 or batch == 0 or int(lengths_B.min(initial=1)) < 1:
        raise ValueError("gamma must be at least 1, and every completion at least one token long")
    reach = int(lengths_B.max()) + (0 if convention.clipped else gamma - 1)
    if width < reach:
        raise ValueError(f"{width} tokens are given and {reach} are needed under the convention '{convention.name}'")
    padded_BT = np.zeros((batch, reach + gamma))
    padded_BT[:, :width] = a_BT[:, : reach + gamma]
    start_BT = np.zeros((batch, reach + gamma + 1))
    start_BT[:, convention.start] = 1.0
    rounds_B, proposed_B, accepted_BG = np.zeros(batch), np.zeros(batch), np.zeros((batch, gamma))
    offsets_G = np.arange(gamma)
    for t in range(convention.start, int(lengths_B.max())):
        start_B = np.where(t < lengths_B, start_BT[:, t], 0.0)
        # stand_BG[:, j]: drafted tokens 0..j all stand. Transitions past the end of a row are never read, so they need
        # no clipping; only what is counted as drafted and accepted does.
        a_BG = padded_BT[:, t : t + gamma]
        stand_BG = a_BG.cumprod(1)
        reached_BG = np.concatenate([np.ones((batch, 1)), stand_BG[:, :-1]], axis=1)
        start_BT[:, t + 1 : t + gamma + 1] += start_B[:, None] * reached_BG * (1 - a_BG)
        start_BT[:, t + gamma + 1] += start_B * stand_BG[:, -1]
        drafted_BG = (
            t + offsets_G[None, :] < lengths_B[:, None] - 1 if convention.clipped else np.ones((batch, gamma), bool)
        )
        rounds_B += start_B
        proposed_B += start_B * drafted_BG.sum(1)
        accepted_BG += start_B[:, None] * stand_BG * drafted_BG
    return Rounds(rounds_B, rounds_B + convention.prefill_call, proposed_B, accepted_BG)


def iid_tokens_per_call(alpha: float, gamma: int) -> float:
    """(1 - alpha^(gamma+1)) / (1 - alpha): Omega if acceptance were the same and independent everywhere
    (Leviathan et al. 2023, eq. 1). Shown beside the exact figure; acceptance is neither."""
    return float(gamma + 1) if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)

"""What one speculative decode does with each token of a completion, drawn from its acceptance probabilities. numpy only.

The counts of an examination are expectations over all decodes; an example for people shows one of them.
"""

import numpy as np

from pipeline.acceptance.rounds import Convention, Floats

PLAIN, ACCEPTED, CORRECTED, BONUS = "pacb"  # one letter per token


def draw_outcomes(a_T: Floats, uniforms_T: Floats, gamma: int, convention: Convention) -> str:
    """One letter for each of the T tokens: accepted, corrected (the token that replaced a rejected draft token), bonus (emitted
    after gamma accepted tokens), or plain (emitted without a draft, such as by the prefill).

    Token t is accepted where uniforms_T[t] < a_T[t]; equal uniforms make two drafts comparable. Raises ValueError for
    gamma < 1 or arrays of different lengths.
    """
    if gamma < 1 or len(a_T) != len(uniforms_T):
        raise ValueError("outcomes need gamma of at least 1 and one uniform number for each token")
    taken_T = np.asarray(uniforms_T) < np.asarray(a_T)
    end, position = len(a_T), min(convention.start, len(a_T))
    letters = [PLAIN] * position
    while position < end:
        length = min(gamma, end - position - 1) if convention.clipped else gamma
        accepted = 0
        while accepted < length and position + accepted < end and taken_T[position + accepted]:
            accepted += 1
        last = PLAIN if not length else BONUS if accepted == length else CORRECTED
        letters += [*(ACCEPTED * accepted), last]
        position += accepted + 1
    return "".join(letters[:end])

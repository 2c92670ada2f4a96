"""log p of a completion's tokens as sampled from: one function for each way in which the servers' answers give it.

Asks nothing. Shapes: N tokens, K likeliest tokens that the server lists.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.cut_offs import cut_off
from pipeline.generation.logged import NEAR_TIE, NotOfTarget
from pipeline.servers.answers import LikeliestTokens, Scored
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import Sampling


@dataclass(frozen=True, kw_only=True)
class ServedTokens:
    """What the servers return for the N tokens of a completion, its lookahead included."""

    tokens_N: NDArray[np.int32]
    answered_N: NDArray[
        np.float32
    ]  # log p as the endpoints that made the tokens gave it; of a recorded one, of the scoring
    listed: LikeliestTokens | None  # what came with the completion; None if it was asked for without
    scored: Scored | None  # None if no scoring was needed
    recorded: bool  # the tokens come from a log

    @property
    def likeliest(self) -> LikeliestTokens:
        """The listed tokens at temperature 1."""
        likeliest = self.listed if self.scored is None else self.scored.likeliest
        assert likeliest is not None  # `passes` asks for one of the two
        return likeliest


@dataclass(frozen=True)
class SampledFrom:
    """The distributions that the tokens were sampled from."""

    log_p_N: NDArray[np.float32]
    listed: (
        LikeliestTokens | None
    )  # -inf for tokens that cannot be sampled; None where the distributions are not listed


def of_answer(answers: ServedTokens, sampling: Sampling) -> SampledFrom:
    """The answer's own log p; at temperature 1 without cut-offs that of the scoring, if there was one."""
    if not sampling.unchanged:
        return SampledFrom(answers.answered_N, None)
    log_p_N = answers.answered_N if answers.scored is None else answers.scored.log_p_N
    return SampledFrom(log_p_N, answers.likeliest)


def of_greedy(answers: ServedTokens, sampling: Sampling) -> SampledFrom:
    """0: at temperature 0 each token is certain."""
    return SampledFrom(np.zeros(len(answers.tokens_N), dtype=np.float32), None)


def of_likeliest(answers: ServedTokens, sampling: Sampling) -> SampledFrom:
    """log p from the listed tokens at temperature 1, which include every token that can be sampled.

    NotOfTarget or UnderstudyError for a token that cannot be: a recorded one, or one of the server.
    """
    # As every such token is listed, the listed tokens are the whole vocabulary for this purpose.
    sampled_NK = log_probabilities(torch.from_numpy(answers.likeliest.log_p_NK), sampling).numpy()
    log_p_N = _listed_log_p(answers.tokens_N, sampled_NK, answers.likeliest)
    if not np.isfinite(log_p_N).all():
        if answers.recorded:
            assert answers.scored is not None  # `passes_of_recorded` asks for a scoring
            least_N = np.where(np.isfinite(sampled_NK), answers.likeliest.log_p_NK, np.inf).min(1)
            raise NotOfTarget(by_rounding=bool((answers.scored.log_p_N >= least_N - NEAR_TIE).all()))
        excluded = answers.tokens_N[~np.isfinite(log_p_N)][0]
        raise UnderstudyError(
            f"the server sampled token {excluded}, which `sampling` excludes; set it to what the server applies"
        )
    return SampledFrom(log_p_N, LikeliestTokens(answers.likeliest.ids_NK, sampled_NK))


def of_cut_off(answers: ServedTokens, sampling: Sampling) -> SampledFrom:
    """log p from the answer and its listed tokens, which are at the sampling's temperature before cut-offs. Raises as
    `cut_off`."""
    assert answers.listed is not None  # `passes` asks for them
    log_p_N, sampled_NK = cut_off(answers.tokens_N, answers.answered_N, answers.listed, sampling)
    return SampledFrom(log_p_N, LikeliestTokens(answers.listed.ids_NK, sampled_NK))


# By `Passes.log_p`.
SAMPLED_FROM: Mapping[str, Callable[[ServedTokens, Sampling], SampledFrom]] = {
    "answer": of_answer,
    "zero": of_greedy,
    "likeliest": of_likeliest,
    "cut_off": of_cut_off,
}


def _listed_log_p(
    tokens_N: NDArray[np.int32], sampled_NK: NDArray[np.float32], likeliest: LikeliestTokens
) -> NDArray[np.float32]:
    """log p of the tokens; -inf for one that is not listed."""
    is_it_NK = (likeliest.ids_NK == tokens_N[:, None]) & np.isfinite(likeliest.log_p_NK)
    return np.asarray(np.where(is_it_NK, sampled_NK, -np.inf).max(1), dtype=np.float32)

"""What a server of the target answers, checked: token ids with log-probabilities. Knows no server and does no I/O. Torch-free.

Shapes: N tokens, K likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError

_HIGHEST = 1e-3  # log-probabilities above it are none; the rest is rounding
_LOWEST = -1e30  # lower ones do not fit float32
_LARGEST_ID = 2**31 - 1


class BadAnswer(UnderstudyError):
    """An answer that cannot be right: a truncated one, wrong counts, ids beyond the vocabulary. It is asked again."""


@dataclass(frozen=True)
class LikeliestTokens:
    """The K likeliest tokens of N distributions, the likeliest first. In the place of a token that the pair does not share is one
    that is not listed, with log p -inf."""

    ids_NK: NDArray[np.int32]
    log_p_NK: NDArray[np.float32]

    def __getitem__(self, rows: slice) -> "LikeliestTokens":
        return LikeliestTokens(self.ids_NK[rows], self.log_p_NK[rows])

    @classmethod
    def joined(cls, parts: "Sequence[LikeliestTokens]") -> "LikeliestTokens":
        """The likeliest tokens of several parts of a completion, one after the other."""
        return cls(np.concatenate([part.ids_NK for part in parts]), np.concatenate([part.log_p_NK for part in parts]))


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A completion. `log_p_N` as the server gives it: of the distribution as sampled from, or at temperature 1."""

    tokens_N: NDArray[np.int32]
    log_p_N: NDArray[np.float32]
    likeliest: LikeliestTokens | None  # None where none were asked for
    stopped: bool  # at a stop token, not at the limit


@dataclass(frozen=True, kw_only=True)
class Plain:
    """The token ids of a completion alone."""

    tokens_N: NDArray[np.int32]
    stopped: bool  # at a stop token, not at the limit


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Log-probabilities at temperature 1 of given tokens, without sampling."""

    log_p_N: NDArray[np.float32]
    likeliest: LikeliestTokens


Candidates = dict[int, float]  # log p by token id, of one distribution


def generated(
    tokens: Sequence[int],
    log_p: Sequence[float],
    candidates: Sequence[Candidates] | None,
    *,
    kept: int,
    stopped: bool,
    may_stop: bool,
    limit: int,
    vocabulary: int,
) -> Generated:
    """A checked completion of at most `limit` tokens; BadAnswer states what is wrong. `kept`: K. `may_stop`: before the limit."""
    checked = plain(tokens, stopped=stopped, may_stop=may_stop, limit=limit, vocabulary=vocabulary)
    if log_p is None:
        raise BadAnswer("no log-probabilities")
    _check_counts(len(tokens), log_p, candidates)
    return Generated(
        tokens_N=checked.tokens_N,
        log_p_N=_log_p(log_p),
        likeliest=None if candidates is None else _likeliest(candidates, kept, vocabulary),
        stopped=stopped,
    )


def plain(tokens: Sequence[int], *, stopped: bool, may_stop: bool, limit: int, vocabulary: int) -> Plain:
    """Checked token ids of a completion of at most `limit` tokens; BadAnswer states what is wrong. `may_stop`: before the
    limit."""
    if not tokens or len(tokens) > limit or (len(tokens) < limit and not (stopped and may_stop)):
        raise BadAnswer(f"{len(tokens)} tokens where {limit} were asked for")
    return Plain(tokens_N=token_ids(tokens, vocabulary), stopped=stopped)


def scored(tokens: Sequence[int], candidates: Sequence[Candidates], *, kept: int, vocabulary: int) -> Scored:
    """Checked log-probabilities of `tokens`; each of `candidates` holds its token's. BadAnswer states what is wrong."""
    _check_counts(len(tokens), None, candidates)
    missing = [token for token, row in zip(tokens, candidates, strict=True) if token not in row]
    if missing:
        raise BadAnswer(f"no log-probability for token {missing[0]} of the prompt")
    log_p = _log_p([row[token] for token, row in zip(tokens, candidates, strict=True)])
    return Scored(log_p_N=log_p, likeliest=_likeliest(candidates, kept, vocabulary))


def _check_counts(count: int, log_p: Sequence[float] | None, candidates: Sequence[Candidates] | None) -> None:
    for name, values in (("log-probabilities", log_p), ("lists of likeliest tokens", candidates)):
        if values is not None and not isinstance(values, list):
            raise BadAnswer(f"the {name} are not a list")
        if values is not None and len(values) != count:
            raise BadAnswer(f"{len(values)} {name} for {count} tokens")


def _likeliest(candidates: Sequence[Candidates], kept: int, vocabulary: int) -> LikeliestTokens:
    counts = [len(row) for row in candidates]
    if min(counts) < kept:
        raise BadAnswer(f"{min(counts)} likeliest tokens where {kept} were asked for")
    ids, log_p = (
        [token for row in candidates for token in row],
        [log_p for row in candidates for log_p in row.values()],
    )
    if wrong := [token for token in ids if not 0 <= token <= _LARGEST_ID]:
        raise BadAnswer(f"invalid token {wrong[0]} among the likeliest")
    # The server adds the token itself, so that rows differ in length: pad them at the end.
    is_there_NM = np.arange(max(counts)) < np.array(counts)[:, None]
    ids_NM, log_p_NM = np.zeros(is_there_NM.shape, np.int64), np.full(is_there_NM.shape, -np.inf, np.float32)
    ids_NM[is_there_NM], log_p_NM[is_there_NM] = ids, _log_p(log_p)
    order_NK = np.lexsort((ids_NM, -log_p_NM), axis=-1)[:, :kept]
    ids_NK, log_p_NK = np.take_along_axis(ids_NM, order_NK, 1), np.take_along_axis(log_p_NM, order_NK, 1)
    # The target's logits may be padded to more columns than the pair shares; such a token is not of the pair.
    beyond_NK = ids_NK >= vocabulary
    log_p_NK[beyond_NK] = -np.inf
    for row in np.flatnonzero(beyond_NK.any(1)):  # ids of other tokens, so that no token is there twice
        free = np.setdiff1d(np.arange(min(2 * kept, vocabulary)), ids_NK[row])
        ids_NK[row, beyond_NK[row]] = free[: beyond_NK[row].sum()]
    order_NK = np.argsort(-log_p_NK, axis=1, kind="stable")
    return LikeliestTokens(
        np.take_along_axis(ids_NK, order_NK, 1).astype(np.int32), np.take_along_axis(log_p_NK, order_NK, 1)
    )


def token_ids(tokens: Sequence[int], vocabulary: int) -> NDArray[np.int32]:
    """(N,): the ids of a completion. BadAnswer for one that is none of the pair's `vocabulary` tokens."""
    if not all(type(token) is int for token in tokens):
        raise BadAnswer("a token id is not an integer")
    if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
        raise BadAnswer(f"token {wrong[0]} is beyond the vocabulary of {vocabulary} tokens")
    return np.array(tokens, dtype=np.int32)


def _log_p(values: Sequence[float]) -> NDArray[np.float32]:
    if not set(map(type, values)) <= {float, int}:
        raise BadAnswer("a log-probability is not a number")
    if wrong := [value for value in values if not _LOWEST < value <= _HIGHEST]:  # NaN is in no interval
        raise BadAnswer(f"invalid log-probability {str(wrong[0])[:20]}")
    return np.minimum(np.array(values, dtype=np.float32), 0.0)

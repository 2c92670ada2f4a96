"""Whether an engine's counts of one request at temperature 0 are those of a draft, and which choices of the draft explain them.

At temperature 0 a draft token is accepted if and only if the draft's argmax, given all tokens before, is the token that the
engine emitted. So the counts follow from what the draft chooses on the emitted tokens (Leviathan et al. 2023, section 2.3 with
one-hot distributions). Two things are open, and are counted either way: tokens past the end, which the engine verified and did
not return, and choices where two logits of the draft are as good as equal. numpy only. Shapes: N emitted tokens, P places of a
block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.engines.counts import Counts

_MOST_BEYOND = 8  # choices of a request that no near-tie explains; with more it is not searched further


@dataclass(frozen=True)
class Drafted:
    """What a draft does on the N tokens that an engine emitted: (N,) by token, or (N, P) where that depends on the start of the
    round, and entry [s, j] is about token s + j."""

    is_argmax: NDArray[np.bool_]  # whether its argmax, given all tokens before, is the token
    is_tie: NDArray[np.bool_]  # whether its two best logits there may be ordered otherwise

    @property
    def tokens(self) -> int:
        return len(self.is_argmax)

    def at(self, start: int, place: int) -> tuple[bool, bool]:
        """Both facts of one place of a round."""
        entry = start + place if self.is_argmax.ndim == 1 else (start, place)
        return bool(self.is_argmax[entry]), bool(self.is_tie[entry])


@dataclass(frozen=True)
class DraftingRule:
    """How an engine drafts. A round that starts at token t drafts `gamma` tokens; with a `limit`, the most tokens of the request,
    at most limit - t - 1, and one that drafts none is not counted. The prefill emits token 0."""

    gamma: int
    limit: int | None = None

    def drafted(self, t: int) -> int:
        """The draft tokens of a round that starts at token t."""
        return self.gamma if self.limit is None else max(0, min(self.gamma, self.limit - t - 1))


@dataclass(frozen=True)
class Explanation:
    """The positions at which the draft must have chosen otherwise than it does here: `ties` within the tolerance of the margin,
    `beyond` outside."""

    ties: tuple[int, ...] = ()
    beyond: tuple[int, ...] = ()

    @property
    def cost(self) -> tuple[int, int]:
        """The cost of the explanation: of two, the one with less is the better."""
        return len(self.beyond), len(self.ties)

    def with_choice(self, position: int, is_tie: bool) -> "Explanation":
        return (
            Explanation((*self.ties, position), self.beyond)
            if is_tie
            else Explanation(self.ties, (*self.beyond, position))
        )


_Key = tuple[int, int, int]  # drafts, draft tokens, accepted


def explain(drafted: Drafted, rounds: DraftingRule, counted: Counts) -> Explanation | None:
    """The explanation with the fewest choices beyond near-ties, then the fewest near-ties; empty where the counts are exactly
    those of the draft. None where no few choices lead to them. A count that is None is not compared."""
    explanations = [
        explanation
        for key, explanation in _possible(drafted, rounds, _MOST_BEYOND).items()
        if _is_counted(key, counted)
    ]
    return min(explanations, key=lambda explanation: explanation.cost, default=None)


def counts_of(drafted: Drafted, rounds: DraftingRule, ties: bool = False) -> tuple[Counts, Counts]:
    """The least and the most that the engine may count with this draft: tokens past the end, and with `ties` near-ties, are
    accepted or not."""
    if not ties:
        drafted = replace(drafted, is_tie=np.zeros_like(drafted.is_tie))
    keys = np.array(list(_possible(drafted, rounds, most=0)))
    least, most = (
        Counts(drafts=float(drafts), draft_tokens=float(tokens), accepted=float(accepted))
        for drafts, tokens, accepted in (keys.min(0), keys.max(0))
    )
    return least, most


def _is_counted(key: _Key, counted: Counts) -> bool:
    wanted = (counted.drafts, counted.draft_tokens, counted.accepted)
    return all(count is None or count == own for count, own in zip(wanted, key, strict=True))


def _possible(drafted: Drafted, rounds: DraftingRule, most: int) -> Mapping[_Key, Explanation]:
    """The best explanation of each of the counts that the engine may have; with at most so many choices beyond near-ties."""
    length, ended = drafted.tokens, dict[_Key, Explanation]()
    at: dict[int, dict[_Key, Explanation]] = {1: {(0, 0, 0): Explanation()}}
    for t in _positions(at, length):
        for (drafts, tokens, accepted), before in at.pop(t).items():
            for count, taken, explanation in _rounds_from(t, drafted, rounds.drafted(t), most, before):
                key = (drafts + (count > 0), tokens + count, accepted + taken)
                following = t + taken + 1
                into = ended if following >= length else at.setdefault(following, {})
                if key not in into or explanation.cost < into[key].cost:
                    into[key] = explanation
    return ended or at[1]


def _positions(at: Mapping[int, object], length: int) -> Iterator[int]:
    """The positions from which a round starts, ascending; rounds add later ones while this runs."""
    for t in range(1, length):
        if t in at:
            yield t


def _rounds_from(
    t: int, drafted: Drafted, count: int, most: int, before: Explanation
) -> Iterator[tuple[int, int, Explanation]]:
    """Every round of `count` draft tokens that may start at token t: draft tokens, accepted tokens, and its explanation."""
    for taken in range(count):
        rejected = _chosen(t, taken, False, drafted, before)
        if len(rejected.beyond) <= most:
            yield count, taken, rejected
        before = _chosen(t, taken, True, drafted, before)
        if len(before.beyond) > most:
            return
    yield count, count, before


def _chosen(start: int, place: int, accepted: bool, drafted: Drafted, before: Explanation) -> Explanation:
    """`before`, and the choice at a place of a round: whether the token is accepted there. Past the end both are free."""
    if start + place >= drafted.tokens:
        return before
    is_argmax, is_tie = drafted.at(start, place)
    return before if is_argmax == accepted else before.with_choice(start + place, is_tie)

"""A draft that copies from the text, walked round by round with a fresh search in each: what its examination is compared with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.acceptance.rounds import Convention


@dataclass(frozen=True)
class Walk:
    """Counts of one completion at one draft length."""

    proposed: int
    per_position: tuple[int, ...]  # rounds whose proposed token i was accepted
    rounds: tuple[tuple[int, int, bool], ...]  # first token, accepted tokens, whether a wrong one ended it

    @property
    def accepted(self) -> int:
        return sum(accepted for _, accepted, _ in self.rounds)

    @property
    def rejected(self) -> int:
        return sum(wrong for _, _, wrong in self.rounds)


def walk(
    prompt: Sequence[int],
    said: Sequence[int],
    gamma: int,
    ngram: int,
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> Walk:
    """Prompt-lookup along the completion `said`; `lookahead` are the target's tokens past its end."""
    return walk_blocks(prompt, said, gamma, lambda before: lookup_block(before, ngram), convention, lookahead)


def walk_blocks(
    prompt: Sequence[int],
    said: Sequence[int],
    gamma: int,
    block_after: Callable[[Sequence[int]], Sequence[int]],
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> Walk:
    """As `walk`, for the draft that proposes `block_after` of the text before a round, cut to gamma tokens."""
    text, proposed, rounds, places = [*prompt, *said], 0, list[tuple[int, int, bool]](), [0] * gamma
    known = text if convention.clipped else [*text, *lookahead]
    position = len(prompt) + convention.start
    while position < len(text):
        block = block_after(known[:position])[:gamma]
        if convention.clipped:
            block = block[: len(text) - position - 1]
        accepted = 0
        while accepted < len(block) and block[accepted] == known[position + accepted]:
            places[accepted] += 1
            accepted += 1
        proposed += len(block)
        rounds.append((position - len(prompt), accepted, accepted < len(block)))
        position += accepted + 1
    return Walk(proposed, tuple(places), tuple(rounds))


def lookup_block(before: Sequence[int], ngram: int) -> Sequence[int]:
    """What follows the latest occurrence of the longest n-gram at the end, to the end of the text."""
    for n in range(min(ngram, len(before)), 0, -1):
        starts = [s for s in range(len(before) - n) if before[s : s + n] == before[-n:]]
        if starts:
            return before[starts[-1] + n :]
    return []

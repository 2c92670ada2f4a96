"""Prompt-lookup (n-gram) drafting, examined by walking a completion: the free baseline that any draft must beat.

What it proposes at a position depends on the text before that position alone, so given the completion every round is
determined. The block may be shorter than gamma or empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.acceptance.rounds import Convention


@dataclass(frozen=True)
class Walk:
    """What prompt-lookup would have cost on one completion at one gamma."""

    rounds: int
    calls: int
    proposed: int
    accepted: int
    rejected: int  # first rejections: rounds whose block was cut short by a wrong token
    per_position: tuple[int, ...]  # rounds whose proposed token i was accepted


def walk(
    prompt: Sequence[int],
    completion: Sequence[int],
    gamma: int,
    longest_ngram: int,
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> Walk:
    """Count the rounds that produce `completion` after `prompt`. ValueError for an empty completion or gamma < 1.

    `lookahead` is what the target would say next: an unclipped convention counts what of it a block gets right.
    """
    return walk_all(prompt, completion, [gamma], longest_ngram, convention, lookahead)[0]


def walk_all(
    prompt: Sequence[int],
    completion: Sequence[int],
    gammas: Sequence[int],
    longest_ngram: int,
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> list[Walk]:
    """`walk` for several gammas; the matches are searched once."""
    if not completion or min(gammas) < 1:
        raise ValueError("prompt-lookup needs a completion of at least one token and gamma of at least 1")
    text = [*prompt, *completion]
    matches = _matches(text, len(prompt), longest_ngram)
    known = text if convention.clipped else [*text, *lookahead]
    return [_walk(known, len(prompt), len(text), matches, gamma, convention) for gamma in gammas]


def _matches(text: Sequence[int], first: int, longest: int) -> list[int]:
    """For each position from `first` on: where the continuation of the longest suffix n-gram seen before it starts
    (its latest occurrence), or -1."""
    seen: dict[tuple[int, ...], int] = {}
    found = []
    for position in range(1, len(text)):
        if position >= first:
            suffixes = (tuple(text[position - n : position]) for n in range(min(longest, position), 0, -1))
            found.append(next((seen[suffix] for suffix in suffixes if suffix in seen), -1))
        # Only now may n-grams that end here be found: a suffix must not match itself.
        for n in range(1, min(longest, position) + 1):
            seen[tuple(text[position - n : position])] = position
    return found if first > 0 else [-1, *found]


def _walk(
    text: Sequence[int], first: int, end: int, matches: Sequence[int], gamma: int, convention: Convention
) -> Walk:
    """`text` reaches past `end`, the first position that no round starts at, as far as the target is known to go."""
    position, known = first + convention.start, len(text)
    rounds = proposed = accepted = rejected = 0
    per_position = [0] * gamma
    while position < end:
        match = matches[position - first]
        room = min(gamma, end - position - 1) if convention.clipped else gamma
        size = min(room, position - match) if match >= 0 else 0
        stood = 0
        while stood < size and position + stood < known and text[match + stood] == text[position + stood]:
            stood += 1
        rounds += 1
        proposed += size
        accepted += stood
        rejected += stood < size and position + stood < known  # what lies further is judged by nobody
        for index in range(stood):
            per_position[index] += 1
        position += stood + 1
    return Walk(rounds, rounds + convention.prefill_call, proposed, accepted, rejected, tuple(per_position))

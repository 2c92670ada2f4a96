"""Rounds of prompt-lookup (n-gram) drafting on a completion: the baseline without a draft model.

Its proposal at a position depends only on the text before that position, so the completion determines every round. A
block may be shorter than gamma or empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.acceptance.rounds import Convention


@dataclass(frozen=True)
class LookupCounts:
    """Counters of prompt-lookup on one completion at one gamma."""

    rounds: int
    calls: int
    proposed: int
    accepted: int
    rejected: int  # first rejections: rounds whose block was cut short by a wrong token
    per_position: tuple[int, ...]  # rounds whose proposed token i was accepted
    # Of each round: its first token, accepted tokens, whether a wrong one ended it. All counts follow from it.
    walk: tuple[tuple[int, int, bool], ...] = field(default=(), compare=False)


def count_lookup(
    prompt: Sequence[int],
    completion: Sequence[int],
    gamma: int,
    longest_ngram: int,
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> LookupCounts:
    """Count the rounds that produce `completion` after `prompt`. ValueError for an empty completion or gamma < 1.

    `lookahead` are the target's tokens past the end: an unclipped convention counts accepted tokens there too.
    """
    return count_lookup_by_gamma(prompt, completion, [gamma], longest_ngram, convention, lookahead)[0]


def count_lookup_by_gamma(
    prompt: Sequence[int],
    completion: Sequence[int],
    gammas: Sequence[int],
    longest_ngram: int,
    convention: Convention,
    lookahead: Sequence[int] = (),
) -> list[LookupCounts]:
    """`count_lookup` for several gammas; the n-gram matches are searched once."""
    if not completion or min(gammas) < 1:
        raise ValueError("prompt-lookup needs a completion of at least one token and gamma of at least 1")
    text = [*prompt, *completion]
    matches = _matches(text, len(prompt), longest_ngram)
    known = text if convention.clipped else [*text, *lookahead]
    return [_count(known, len(prompt), len(text), matches, gamma, convention) for gamma in gammas]


def _matches(text: Sequence[int], first: int, longest: int) -> list[int]:
    """For each position from `first` on: the start of the continuation after the latest earlier occurrence of the longest
    matching suffix n-gram, or -1."""
    seen: dict[tuple[int, ...], int] = {}
    found = []
    for position in range(1, len(text)):
        if position >= first:
            suffixes = (tuple(text[position - n : position]) for n in range(min(longest, position), 0, -1))
            found.append(next((seen[suffix] for suffix in suffixes if suffix in seen), -1))
        # Added only now, so that a suffix does not match itself.
        for n in range(1, min(longest, position) + 1):
            seen[tuple(text[position - n : position])] = position
    return found if first > 0 else [-1, *found]


def _count(
    text: Sequence[int], first: int, end: int, matches: Sequence[int], gamma: int, convention: Convention
) -> LookupCounts:
    """`text` may extend past `end` by the lookahead; rounds start only before `end`."""
    position, known = first + convention.start, len(text)
    rounds = proposed = accepted = rejected = 0
    per_position, walk = [0] * gamma, list[tuple[int, int, bool]]()
    while position < end:
        match = matches[position - first]
        room = min(gamma, end - position - 1) if convention.clipped else gamma
        size = min(room, position - match) if match >= 0 else 0
        matched = 0
        while matched < size and position + matched < known and text[match + matched] == text[position + matched]:
            matched += 1
        rounds += 1
        proposed += size
        accepted += matched
        wrong = matched < size and position + matched < known  # unknown tokens count as neither
        rejected += wrong
        walk.append((position - first, matched, wrong))
        for index in range(matched):
            per_position[index] += 1
        position += matched + 1
    return LookupCounts(
        rounds, rounds + convention.prefill_call, proposed, accepted, rejected, tuple(per_position), tuple(walk)
    )

"""Tokens per second of plain decoding and of decoding with a draft, as a decision has them, and from repeated turns: of one turn
nobody knows how much of it is noise. Imports nothing heavy."""

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Literal

from pipeline.store.parsing import Count, Flag, Number, Text, stored

LEAST_PROMPTS, LEAST_TOKENS = 8, 512  # with fewer of either there is no speedup

TimedDraft = Literal["itself", "baseline", "candidate", "another"]


@stored(kw_only=False)
class Measured:
    """An estimate with its confidence bounds, which are None where there are too few turns. The estimate is a
    median over turns, or made of one."""

    median: Number
    low: Number | None
    high: Number | None


def of_turns(values: Sequence[float], confidence: float = 0.95) -> Measured:
    """The median, and order statistics that bound it with at least this confidence, whatever the distribution: of n turns the
    k-th smallest and the k-th largest do with 1 - 2 P(fewer than k of n turns are below the median). ValueError for no turns."""
    ordered, count = sorted(values), len(values)
    if not ordered:
        raise ValueError("no turns")
    best, below = None, 0.0
    for number in range(count // 2):
        below += comb(count, number) / 2**count  # P(at most `number` turns are below the median)
        if 1 - 2 * below >= confidence:
            best = number
    middle = median(ordered)
    return Measured(middle, None, None) if best is None else Measured(middle, ordered[best], ordered[count - 1 - best])


def least_turns(confidence: float = 0.95) -> int:
    """The fewest turns whose smallest and largest bound the median with this confidence: 6 with 95%."""
    turns = 2
    while 1 - 2 / 2**turns < confidence:
        turns += 1
    return turns


@stored
class SpeedCheck:
    """The speedup of the draft that was timed: computed as those of decisions are, and by decoding directly."""

    gamma: Count
    prompts: Count
    tokens: Count  # decoded with the draft, and about as many without
    computed: Measured
    decoded: Measured | None  # None: so few tokens are not enough
    agrees: Flag  # the intervals overlap, or nothing is compared


@stored
class DraftSpeed:
    """Decoding with one draft. `speedup`: tokens per second / those of plain decoding in the same turn."""

    gamma: Count  # draft tokens per round: the best examined length
    tokens_per_second: Measured
    speedup: Measured | None  # None where it is not measurable
    not_measurable: Text | None = None  # why there is no speedup, in one line for people
    timed: TimedDraft | None = None  # whose step times these are, all of equal shape; None: not known
    check: SpeedCheck | None = None  # of these step times


@stored(schema=1)
class DecodingSpeed:
    """One request at a time, in interleaved turns: plain, with the baseline, with the candidate. `plain` and the conditions are
    of the turns with the candidate; a baseline of another shape was timed in turns of its own."""

    device: Text
    prompts: Count
    tokens: Count  # steps of plain decoding in a turn, of all prompts
    turns: Count
    confidence: Number
    plain: Measured  # tokens per second
    baseline: DraftSpeed | None  # None where the candidate is the baseline itself
    candidate: DraftSpeed
    examined_prompts: Count | None = None  # from which tokens per round are; None: an earlier version did not state it
    examined_tokens: Count | None = None


def too_few(prompts: int, tokens: int) -> str | None:
    """Why nothing can be measured on so many; None where there are enough."""
    if prompts >= LEAST_PROMPTS and tokens >= LEAST_TOKENS:
        return None
    return (
        f"{extent(prompts, tokens)} are too few; at least {LEAST_PROMPTS} prompts and {LEAST_TOKENS} tokens are needed"
    )


def extent(prompts: int, tokens: int) -> str:
    """`8 prompts with 512 tokens`."""
    return f"{prompts:,} prompt{'' if prompts == 1 else 's'} with {tokens:,} token{'' if tokens == 1 else 's'}"

"""Which form of the candidate goes to the examination's judgement: as it was trained, or quantised. Pure.

Chosen on dev prompts, by what the stated load would get; the examination then judges the one chosen. All that it may do here is
to refuse: a quantised draft that loads and no longer agrees with the target is broken, however fast it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_AGREES = 0.5  # of the acceptance before quantising; rounding to 8 or 4 bits costs a few hundredths


@dataclass(frozen=True)
class Contender:
    """A form of the candidate. The first one is the candidate as it was trained."""

    name: str
    acceptance: float | None  # in the examination; None where it could not be computed
    timed: bool  # whether it is known what it takes to serve
    seconds: float | None = None  # of a mean request at the stated load, predicted on dev; None where it is not stable


@dataclass(frozen=True)
class Standing:
    """What became of a contender, and why in a line for people."""

    name: str
    verdict: str  # chosen, slower, refused, not compared
    text: str
    acceptance: float | None
    seconds: float | None


CHOSEN, SLOWER, REFUSED, NOT_COMPARED = "chosen", "slower", "refused", "not compared"


def choose(contenders: Sequence[Contender]) -> list[Standing]:
    """Of each in their order; exactly one is chosen: the fastest of those that agree, the first of them where none is timed."""
    first = contenders[0]
    sound = [one for one in contenders if _agrees(one, first)]
    timed = [one for one in sound if one.timed]
    best = min(timed, key=lambda one: float("inf") if one.seconds is None else one.seconds) if timed else first
    alone = sum(one.timed for one in contenders) == 1
    return [Standing(one.name, *_verdict(one, best, first, alone), one.acceptance, one.seconds) for one in contenders]


def _agrees(one: Contender, first: Contender) -> bool:
    if one is first:
        return True
    return one.acceptance is not None and one.acceptance >= _AGREES * (first.acceptance or 0.0)


def _verdict(one: Contender, best: Contender, first: Contender, alone: bool) -> tuple[str, str]:
    if not _agrees(one, first):
        before = "" if first.acceptance is None else f"; as it was trained, {first.acceptance:.3f}"
        found = "it cannot be computed" if one.acceptance is None else f"its acceptance is {one.acceptance:.3f}"
        return REFUSED, f"{one.name} no longer agrees with the target: {found}{before}"
    if not one.timed:
        if one is best:
            return CHOSEN, f"{one.name}: nothing says what any form takes to serve (gate.load, gate.profile)"
        return NOT_COMPARED, f"{one.name}: nothing says what it takes to serve (gate.load, gate.profile.{one.name})"
    if one.seconds is not None:
        took = f"{one.seconds:.3g} s a request predicted on dev prompts"
    else:  # nobody was timed on dev where there is nothing to choose
        took = "the only form with a profile (gate.profile)" if alone else "not stable at the load"
    return (CHOSEN if one is best else SLOWER), f"{one.name}: {took}"

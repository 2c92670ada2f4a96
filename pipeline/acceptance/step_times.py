"""Measured seconds of decoding steps, by turn, and the tokens per second that follow from them. Imports nothing heavy.

Step times belong to the shapes of two models and to a machine. Tokens per round belong to a draft, and are examined over all
prompts. A speedup needs both, so drafts of equal shape differ by their acceptance alone:

    S(gamma) = L(gamma) t_plain / t_round(gamma),    L = 1 + accepted / rounds, examined (`tokens_per_round.py`)

The ratio of times is the median over turns of the ratio within a turn. L and the times are independent, so the errors of their
logarithms add in squares (delta method). Each has bounds of its own and not only a standard error, so the bounds are
recovered from them (MOVER; Zou and Donner 2008, 'Construction of confidence limits about effect measures'):

    S_low = S exp(-sqrt(ln(L / L_low)^2 + ln(r / r_low)^2)),    r = t_plain / t_round; S_high likewise

The draft length is the one with the largest estimate; the interval does not include that choice.

Whether step times are measurable is asked of the times, and of all their draft lengths: two drafts of equal shape have different
best lengths, and one of them would have a figure and the other none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil, exp, hypot, log
from pathlib import Path
from statistics import median
from typing import Annotated

from pydantic import Field

from pipeline.acceptance.decoding_speed import (
    DecodingSpeed,
    DraftSpeed,
    Measured,
    SpeedCheck,
    extent,
    least_turns,
    of_turns,
    too_few,
)
from pipeline.acceptance.schema import Figure
from pipeline.store.files import write_json
from pipeline.store.parsing import Count, CountKey, Number, Text, format_of, stored

FILE = "step_times.json"
_Seconds = list[Annotated[Number, Field(gt=0)]]
_MEASURE_AGAIN = " These step times stay in the store: change evaluate.speed.turns to measure again"
_MOST_SPREAD = 1.5  # upper bound / lower bound of a ratio of step times that is still worth reading


@stored(
    name="measured step times",
    schema=1,
    remedy="measure them again (`understudy run` with the same config)",
)
class StepTimes:
    """Mean seconds of a step of plain decoding, and of a round at each draft length, in each turn; one request at a time."""

    device: Text
    prompts: Count
    tokens: Count  # steps of plain decoding in a turn, for all prompts
    plain: _Seconds
    rounds: dict[CountKey, _Seconds]
    draft: Text | None = None  # digest of the draft that was timed
    needed_seconds: Number | None = None  # for enough prompts and tokens, where `evaluate.speed.seconds` was not enough
    check: SpeedCheck | None = None  # None where the speedup of that draft is not measurable
    target_passes: Text | None = None  # "compiled", "graphs" or "eager"; None: an earlier version did not state it

    @property
    def turns(self) -> int:
        return len(self.plain)

    def decoding_speed(
        self, candidate: DraftSpeed, baseline: DraftSpeed | None, examined: tuple[int, int], confidence: float
    ) -> DecodingSpeed:
        """What people see, of the times with the candidate. `examined`: prompts and tokens."""
        prompts, tokens = examined
        return DecodingSpeed(
            device=self.device,
            prompts=self.prompts,
            tokens=self.tokens,
            turns=self.turns,
            confidence=confidence,
            plain=of_turns([1 / pace for pace in self.plain], confidence),
            baseline=baseline,
            candidate=candidate,
            examined_prompts=prompts,
            examined_tokens=tokens,
        )


def _check(times: StepTimes) -> None:
    """ValueError for times without a turn or a length, or of unequal turns."""
    if not times.plain or not times.rounds:
        raise ValueError("no turns, or no draft lengths")
    if any(len(seconds) != times.turns for seconds in times.rounds.values()):
        raise ValueError("rounds: as many seconds as in `plain` are needed for each draft length")


def write_step_times(directory: Path, times: StepTimes) -> None:
    write_json(directory / FILE, asdict(times))


def find_step_times(directory: Path) -> StepTimes | None:
    """The step times of an artifact; None where there is no such file. UnderstudyError naming the file if it is damaged."""
    return format_of(StepTimes, _check).find(directory / FILE)


def draft_speed(times: StepTimes, per_round: Mapping[int, Figure], tokens: int, confidence: float) -> DraftSpeed:
    """Decoding with a draft of this shape, at the draft length with the most tokens per second. `per_round`: its examined tokens
    per round, of every length that was timed; `tokens`: those of the examined completions."""
    speed = speed_at_best_length(times.plain, times.rounds, per_round, confidence)
    reason = _too_little(times, per_round[speed.gamma], tokens) or speed.not_measurable or _contradiction(times.check)
    if reason is not None and reason == speed.not_measurable:
        reason += _MEASURE_AGAIN
    speedup = None if reason is not None else speed.speedup
    return replace(speed, speedup=speedup, not_measurable=reason, check=times.check)


def speed_at_best_length(
    plain: Sequence[float],
    rounds: Mapping[int, Sequence[float]],
    per_round: Mapping[int, Figure],
    confidence: float,
) -> DraftSpeed:
    """The speed by seconds of a step of plain decoding and of a round at each draft length, in the same turns, and tokens per
    round. The speedup is not measurable where there are too few turns for bounds, or where the turns differ too much."""
    rates = {length: [per_round[length].value / own for own in seconds] for length, seconds in rounds.items()}
    best = max(rates, key=lambda length: median(rates[length]))
    of_steps = of_turns([rate * own for rate, own in zip(rates[best], plain, strict=True)], confidence)
    rate, reason = of_turns(rates[best], confidence), differ_too_much(plain, rounds, confidence)
    if of_steps.low is None:
        reason = f"{len(plain)} turns are too few for a {100 * confidence:g}% interval, {least_turns(confidence)} are needed."
    return DraftSpeed(
        gamma=best,
        tokens_per_second=with_error(rate, per_round[best]),
        speedup=with_error(of_steps, per_round[best]) if reason is None else None,
        not_measurable=reason,
    )


def differ_too_much(
    plain: Sequence[float], rounds: Mapping[int, Sequence[float]], confidence: float = 0.95
) -> str | None:
    """Why these times are no measurement, whatever the draft: at some draft length the bounds of plain / round, which is taken
    within each turn, are too far apart to show anything. None where they are not, and for too few turns."""
    spread = dict[int, float]()
    for length, seconds in rounds.items():
        ratio = of_turns([own / other for own, other in zip(plain, seconds, strict=True)], confidence)
        spread[length] = 1.0 if ratio.low is None or ratio.high is None else ratio.high / ratio.low
    worst = max(spread, key=lambda length: spread[length])
    if spread[worst] <= _MOST_SPREAD:
        return None
    return f"step times differ by a factor of {spread[worst]:.1f} between turns (γ={worst}); is something else running?"


def with_error(measured: Measured, examined: Figure) -> Measured:
    """What is proportional to an examined figure, with the error of that figure too: as in the formula above."""
    middle, value = measured.median, examined.value
    if measured.low is None or measured.high is None or examined.low is None or examined.high is None:
        return Measured(middle, None, None)
    below = hypot(log(middle / measured.low), log(value / max(examined.low, 1.0)))  # a round gives at least one token
    above = hypot(log(measured.high / middle), log(examined.high / value))
    return Measured(middle, middle * exp(-below), middle * exp(above))


def _too_little(times: StepTimes, examined: Figure, tokens: int) -> str | None:
    """Why these prompts and tokens give no speedup, with what to do."""
    if (few := too_few(times.prompts, times.tokens)) is not None:
        remedy = "set evaluate.speed.prompts and evaluate.speed.tokens so, with as many examination prompts"
        if times.needed_seconds is not None:
            remedy = f"raise evaluate.speed.seconds to about {ceil(times.needed_seconds):,}"
        return f"{few} in each turn: {remedy}"
    if (few := too_few(examined.prompts, tokens)) is not None:
        return f"{few} in the examination: add rows, or raise corpus.splits.examination"
    if examined.low is None:
        return "tokens per round have no interval: a few prompts have most of the tokens"
    return None


def _contradiction(check: SpeedCheck | None) -> str | None:
    """Two kinds of evidence that exclude each other give no figure."""
    if check is None or check.decoded is None or check.agrees:
        return None
    return (
        f"decoding {extent(check.prompts, check.tokens)} gave x{check.decoded.median:.2f}, and step times "
        f"x{check.computed.median:.2f}; is something else running?{_MEASURE_AGAIN}"
    )

"""Whether decoding with the candidate is faster than plain decoding, in words. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from pipeline.acceptance.decoding_speed import DecodingSpeed, DraftSpeed, Measured
from pipeline.config.quantize import UNQUANTIZED
from pipeline.judgement.rule_result import RuleResult
from pipeline.judgement.schema import BASELINE, CANDIDATE, PLAIN, REFUSE, BriefDecision, Side, Verdict

_HERE = "on this machine"
MIN_SPEEDUP = "min_speedup"  # the rule about the speedup at `gate.load`


def speed_warnings(verdict: Verdict, rules: Sequence[RuleResult], speed: DecodingSpeed | None) -> list[str]:
    """Why a draft that passed may be worth nothing, in the words that follow "passed, but". A refused draft has none.

    The figure is the one that says most about the deployment: the prediction at `gate.load`, else the measured speedup on this
    machine. An estimate below 1 warns, also if 1 is in its interval.
    """
    if verdict == REFUSE:
        return []
    found = _found(rules, speed)
    if found is None or found[0].median >= 1:
        return []
    figure, where = found
    slower = figure.high is None or figure.high < 1
    return [f"{'slower' if slower else 'not faster'} than plain decoding {where} ({times(figure)})"]


def speedup_of(rules: Sequence[RuleResult], speed: DecodingSpeed | None) -> Measured | None:
    """The candidate's speedup over plain decoding that `speed_warnings` looks at; None where there is none."""
    found = _found(rules, speed)
    return None if found is None else found[0]


def _found(rules: Sequence[RuleResult], speed: DecodingSpeed | None) -> tuple[Measured, str] | None:
    predicted = next((rule.figure for rule in rules if rule.name == MIN_SPEEDUP and rule.figure is not None), None)
    if predicted is not None:
        return Measured(predicted.value, predicted.low, predicted.high), "at the stated load"
    if speed is not None:
        measured = speed.candidate.speedup
        return None if measured is None else (measured, _HERE)
    return None


def speed_line(speed: DecodingSpeed, names: Mapping[Side, str]) -> str:
    """Tokens per second of each side, and the speedups. `names`: what each side is called."""
    shown = [f"{per_second(speed.plain)} ({names[PLAIN]})"]
    for side, draft in drafts(speed):
        shown.append(
            f"{per_second(draft.tokens_per_second)} ({with_length(names[side], draft)}, {speedup_text(draft)})"
        )
    return f"measured tokens per second {'; '.join(shown)}; {conditions(speed)}"


def conditions(speed: DecodingSpeed) -> str:
    """What the measurement depends on."""
    return (
        f"one request at a time, {speed.turns} interleaved turns, on {speed.device}; x: the median ratio within a turn"
    )


def measured_line(decision: BriefDecision) -> str:
    """`x1.48 [1.37, 1.51] at 3 draft tokens, one request at a time, on ...`; empty where no speedup was measured."""
    speed = decision.speed
    if speed is None or speed.candidate.speedup is None:
        return ""
    best, which = speed.candidate, "" if decision.variant == UNQUANTIZED else " of the unquantized draft"
    return f"{times(speed.candidate.speedup)}{which} at {best.gamma} draft tokens, one request at a time, on {speed.device}"


def warnings_elsewhere(decision: BriefDecision) -> list[str]:
    """The warnings, for readers on another machine than that of the run."""
    where = "on the machine of the run" if decision.speed is None else f"on {decision.speed.device}"
    return [warning.replace(_HERE, where) for warning in decision.warnings]


def served_worth(decision: BriefDecision, gamma: int) -> list[str]:
    """What people who serve the draft with `gamma` draft tokens must know of its speed, a line each: that it may be worth
    nothing, and that another draft length was the fastest where it was measured."""
    found = [f"the draft passed, but was {warning}" for warning in warnings_elsewhere(decision)]
    if decision.speed is not None and decision.speed.candidate.gamma != gamma and (line := measured_line(decision)):
        found.append(
            f"measured: {line}; this is started with {gamma}: --gamma {decision.speed.candidate.gamma} starts it so"
        )
    return found


def drafts(speed: DecodingSpeed) -> Iterator[tuple[Side, DraftSpeed]]:
    """The drafts that were measured, in the order in which they are shown."""
    if speed.baseline is not None:
        yield BASELINE, speed.baseline
    yield CANDIDATE, speed.candidate


def with_length(name: str, draft: DraftSpeed) -> str:
    """`candidate, γ=3`: the draft length is the draft's best."""
    return f"{name}, γ={draft.gamma}"


def speedup_text(draft: DraftSpeed) -> str:
    """`x1.24 [1.20, 1.28]`, or `not measurable`; `not_measurable` says why."""
    return "not measurable" if draft.speedup is None else times(draft.speedup)


def not_measurable(speed: DecodingSpeed, names: Mapping[Side, str]) -> list[str]:
    """Why there is no speedup, a line for each reason: `speedup of candidate not measurable: REASON`. `names`: as for
    `speed_line`."""
    by_reason: dict[str, list[str]] = {}
    for side, draft in drafts(speed):
        if draft.not_measurable is not None:
            by_reason.setdefault(draft.not_measurable, []).append(names[side])
    return [f"speedup of {' and '.join(sides)} not measurable: {reason}" for reason, sides in by_reason.items()]


def times(speedup: Measured) -> str:
    """`x0.87 [0.85, 0.90]`; the estimate alone where it has no interval."""
    return f"x{speedup.median:.2f}{_bounds(speedup, '.2f')}"


def per_second(rate: Measured) -> str:
    """`5,580 [5,410, 5,690]`."""
    digits = ",.0f" if rate.median >= 100 else ".1f"
    return f"{rate.median:{digits}}{_bounds(rate, digits)}"


def _bounds(figure: Measured, digits: str) -> str:
    return "" if figure.low is None or figure.high is None else f" [{figure.low:{digits}}, {figure.high:{digits}}]"

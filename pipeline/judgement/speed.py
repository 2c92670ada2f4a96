"""Whether decoding with the candidate is faster than plain decoding, in words. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.acceptance.decoding_speed import (
    DecodingSpeed,
    DraftSpeed,
    Measured,
    SpeedCheck,
    TimedDraft,
    extent,
    too_few,
)
from pipeline.config.quantize import UNQUANTIZED
from pipeline.judgement.rule_result import RuleResult
from pipeline.judgement.schema import BASELINE, CANDIDATE, PLAIN, REFUSE, BriefDecision, Side, Verdict

_HERE = "on this machine"
MIN_SPEEDUP = "min_speedup"  # the rule about the speedup at `gate.load`


def speed_warnings(verdict: Verdict, rules: Sequence[RuleResult], speed: DecodingSpeed | None) -> list[str]:
    """Why a draft that passed may be worth nothing, in the words that follow "passed, but". A refused draft has none.

    The figure is the one closest to the deployment: the prediction at `gate.load`, else the measured speedup on this
    machine. An estimate below 1 warns, also if 1 is in its interval.
    """
    if verdict == REFUSE:
        return []
    rule = _found(rules, speed)
    if rule is None or rule[0].median >= 1:
        return []
    figure, where = rule
    slower = figure.high is None or figure.high < 1
    return [f"{'slower' if slower else 'not faster'} than plain decoding {where} ({times(figure)})"]


def speedup_of(rules: Sequence[RuleResult], speed: DecodingSpeed | None) -> Measured | None:
    """The candidate's speedup over plain decoding that `speed_warnings` looks at; None where there is none."""
    rule = _found(rules, speed)
    return None if rule is None else rule[0]


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
    """What the figures are from."""
    examined = ""
    if speed.examined_prompts is not None and speed.examined_tokens is not None:
        examined = f"; tokens per round of {_examined(speed.examined_prompts, speed.examined_tokens)}"
    return f"{timed_on(speed)}, one request at a time, on {speed.device}{examined}; x: speedup over plain decoding"


def timed_on(speed: DecodingSpeed) -> str:
    """`8 prompts with 512 tokens in each of 9 interleaved turns`."""
    return f"{extent(speed.prompts, speed.tokens)} in each of {speed.turns} interleaved turns"


def _examined(prompts: int, tokens: int) -> str:
    return f"{prompts:,} examined prompts ({tokens:,} tokens)"


def measured_line(decision: BriefDecision) -> str:
    """`x1.48 [1.37, 1.51] at 3 draft tokens, 8 prompts with 512 tokens in each of ...`, or `not measurable: REASON`; empty where
    nothing was measured."""
    speed = decision.speed
    if speed is None:
        return ""
    best, which = speed.candidate, "" if decision.variant == UNQUANTIZED else " of the unquantized draft"
    if best.speedup is None:
        return f"not measurable{which}: {best.not_measurable}"
    where = f"{timed_on(speed)}, one request at a time, on {speed.device}"
    return f"{times(best.speedup)}{which} at {best.gamma} draft token{'' if best.gamma == 1 else 's'}, {where}"


def remarks(speed: DecodingSpeed, names: Mapping[Side, str]) -> list[str]:
    """What people must know beside the figures, a line each: why there is no speedup, whose step times were used, and whether
    decoding agrees with them. `names`: as for `speed_line`."""
    return [*not_measurable(speed, names), *_shared(speed, names), *_checks(speed, names)]


def _shared(speed: DecodingSpeed, names: Mapping[Side, str]) -> Iterator[str]:
    for side, draft in drafts(speed):
        if draft.timed not in (None, "itself"):
            yield f"step times of {names[side]} are those of {_timed_name(draft, names)} (equal shape)"


def _timed_name(draft: DraftSpeed, names: Mapping[Side, str]) -> str:
    sides: dict[TimedDraft | None, Side] = {"baseline": BASELINE, "candidate": CANDIDATE}
    return names[sides[draft.timed]] if draft.timed in sides else "a draft of an earlier run"


def _checks(speed: DecodingSpeed, names: Mapping[Side, str]) -> list[str]:
    """One for each measurement of step times."""
    lines = list[str]()
    for side, draft in drafts(speed):
        if draft.check is not None:
            name = names[side] if draft.timed in (None, "itself") else _timed_name(draft, names)
            lines.append(check_line(draft.check, name))
    return list(dict.fromkeys(lines))


def check_line(check: SpeedCheck, name: str) -> str:
    """`checked by decoding 8 prompts with 523 tokens (base draft, γ=2): x1.20 [...] decoded, x1.24 [...] computed: agrees`."""
    if check.decoded is None:
        few = too_few(check.prompts, check.tokens) or f"{extent(check.prompts, check.tokens)} give no figure"
        return f"not checked by decoding ({name}, γ={check.gamma}): {few}"
    verdict = "agrees" if check.agrees else "does not agree"
    return (
        f"checked by decoding {extent(check.prompts, check.tokens)} ({name}, γ={check.gamma}): {times(check.decoded)} decoded, "
        f"{times(check.computed)} computed: {verdict}"
    )


def as_measurable(speed: DecodingSpeed | None) -> DecodingSpeed | None:
    """The speed without speedups of too few prompts or tokens, which earlier versions recorded."""
    reason = None if speed is None else too_few(speed.prompts, speed.tokens)
    if speed is None or reason is None:
        return speed
    candidate, baseline = (
        None if side is None else _without(side, reason) for side in (speed.candidate, speed.baseline)
    )
    assert candidate is not None
    return replace(speed, candidate=candidate, baseline=baseline)


def without_measured(warnings: Sequence[str]) -> list[str]:
    """The warnings that do not rest on the measured speedup."""
    return [warning for warning in warnings if _HERE not in warning]


def _without(draft: DraftSpeed, reason: str) -> DraftSpeed:
    return draft if draft.speedup is None else replace(draft, speedup=None, not_measurable=f"{reason} in each turn")


def warnings_elsewhere(decision: BriefDecision) -> list[str]:
    """The warnings, for readers on another machine than that of the run."""
    where = "on the machine of the run" if decision.speed is None else f"on {decision.speed.device}"
    return [warning.replace(_HERE, where) for warning in decision.warnings]


def served_worth(decision: BriefDecision, gamma: int) -> list[str]:
    """What people who serve the draft with `gamma` draft tokens must know of its speed, a line each: that it may be worth
    nothing, or that nobody knows, and that another draft length was the fastest where it was measured."""
    lines = [f"the draft passed, but was {warning}" for warning in warnings_elsewhere(decision)]
    if decision.speed is None:
        return lines
    best, line = decision.speed.candidate, measured_line(decision)
    if best.speedup is None:
        return [*lines, f"speedup {line}"]
    if best.gamma != gamma:
        lines.append(
            f"measured: {line}; this is started with {gamma}; export it with --gamma {best.gamma} to start it so"
        )
    return lines


def drafts(speed: DecodingSpeed) -> Iterator[tuple[Side, DraftSpeed]]:
    """The drafts that were measured, in the order in which they are shown."""
    if speed.baseline is not None:
        yield BASELINE, speed.baseline
    yield CANDIDATE, speed.candidate


def with_length(name: str, draft: DraftSpeed) -> str:
    """`candidate, γ=3`: the draft length is the draft's best."""
    return f"{name}, γ={draft.gamma}"


def speedup_text(draft: DraftSpeed) -> str:
    """`x1.24 [1.20, 1.28]`, or `not measurable`; `not_measurable` is the reason."""
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

"""A decision in a few lines: the verdict, by how much, against which draft, the benefit. Pure. Every renderer begins so.

Lines are plain text, without Markdown.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.acceptance.schema import Figure, counted, unit_name
from pipeline.judgement.rule_result import OF_SPEED, Power, RuleResult
from pipeline.judgement.schema import (
    ALREADY_CHAMPION,
    BASELINE,
    CANDIDATE,
    PLAIN,
    PROMOTE,
    REFUSE,
    Benefit,
    BriefDecision,
    Decision,
    Side,
)
from pipeline.judgement.speed import remarks, speed_line

_WARNED = "⚠"
Promotion = Mapping[str, Any] | None
_MARKS = {PROMOTE: "✓", REFUSE: "✗", ALREADY_CHAMPION: "="}
_WORDS = {PROMOTE: "passed", REFUSE: "refused", ALREADY_CHAMPION: "already champion"}
NO_POWER = "power not known: too few prompts, or both drafts accept the same on every prompt"
_UNDO = (
    "To make the previous champion champion again: `understudy champion rollback config.yaml`, with the run's config."
)
_MOST_REASONS = 5
_PROMOTED = "promoted"  # the result of a promotion
# Rules about a gain in acceptance rate.
OF_ACCEPTANCE = ("min_gain", "domain_margin", "segment_margin", "length_margin")
_SPEED_NAMES = tuple(OF_SPEED.values())
_NO_POWER_OF_SPEED = "power not known: too few prompts, or step times that are not known or have an error of their own"
_BASELINES = {"base": "the base draft", "champion": "the champion"}


def mark(decision: BriefDecision, promotion: Promotion = None) -> str:
    """One character that distinguishes verdicts in a list; of a draft with a warning another one. `promotion`: name, version and
    result of what the registry did, where that is known."""
    if promotion and str(promotion["result"]).startswith(("refused", "rolled back")):
        return _MARKS[REFUSE]
    return _WARNED if decision.warnings else _MARKS[decision.verdict]


def outcome(decision: BriefDecision, promotion: Promotion = None) -> str:
    """What became of the candidate: `passed`, `promoted as version 1`, or with a warning `promoted as version 1, but slower than
    plain decoding on this machine (x0.87 [0.85, 0.90])`. `promotion`: as for `mark`."""
    word = _WORDS[decision.verdict]
    if promotion and decision.verdict == PROMOTE:
        result, version = str(promotion["result"]), promotion["version"]
        word = f"promoted as version {version}" if result == _PROMOTED else f"{word}; version {version}: {result}"
    return ", but ".join([word, *decision.warnings])


def undo(decision: BriefDecision, promotion: Promotion = None) -> str:
    """How a promotion is undone, in Markdown; empty where no champion was replaced."""
    promoted = promotion is None or promotion["result"] == _PROMOTED
    return _UNDO if promoted and decision.champion is not None and decision.verdict == PROMOTE else ""


def baseline_name(decision: BriefDecision) -> str:
    """The draft that the candidate was compared with, such as `the champion (version 3)`."""
    name, champion = _BASELINES[decision.baseline], decision.champion
    return f"{name} (version {champion.version})" if decision.baseline == "champion" and champion else name


def compared(decision: BriefDecision) -> str:
    """Such as `candidate (int8) compared with the champion (version 3)`."""
    line = f"candidate ({decision.variant}) compared with {baseline_name(decision)}"
    return line if decision.baseline == "champion" else f"{line} (there was no champion)"


def headline(decision: Decision, promotion: Promotion = None) -> list[str]:
    """What became of the candidate, with what it was compared, the reasons, the figures and what to do, one line each.
    `promotion`: as for `mark`."""
    return [
        _capital(outcome(decision, promotion)),
        _capital(compared(decision)),
        *reasons(decision),
        *figures(decision),
        *(f"What now: {line}" for line in decision.what_now),
    ]


def reasons(decision: BriefDecision) -> list[str]:
    """Why the candidate is not promoted: the first rules that did not pass, and the number of the others. With many domains all
    of them would hide what follows, and they stand in the table of rules."""
    more = len(decision.reasons) - _MOST_REASONS
    if more <= 1:
        return decision.reasons
    return [*decision.reasons[:_MOST_REASONS], f"{more} more rules did not pass"]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def gain_in_words(decision: Decision) -> str:
    """Such as `+3.10 points [+2.00, +4.20] over the champion (version 2)`; empty without an interval."""
    if decision.gains is None or decision.gains.acceptance_rate.low is None:
        return ""
    return f"{points(decision.gains.acceptance_rate)} over {baseline_name(decision)}"


def figures(decision: Decision) -> list[str]:
    """Acceptance, tokens per target call, size, and what they buy."""
    gains, gamma = decision.gains, decision.gamma
    compared = baseline_name(decision).removeprefix("the ")
    ours, theirs = decision.drafts.get(CANDIDATE), decision.drafts.get(BASELINE)
    if ours is None:
        return []
    omega = ours.tokens_per_target_call[gamma]
    acceptance, other = f"acceptance rate {interval(ours.acceptance_rate, 3)}", ""
    if theirs and gains:
        gain = gains.acceptance_rate
        acceptance = (
            f"acceptance rate {ours.acceptance_rate.value:.3f}, {compared} {theirs.acceptance_rate.value:.3f}: "
            f"{points(gain)} over {counted(gain.prompts, gain.conversations)}"
        )
        other = f"; {compared} {theirs.tokens_per_target_call[gamma].value:.2f}"
    lines = [acceptance, f"tokens per target call {interval(omega, 2)} with {gamma} draft tokens{other}"]
    lines += [rule.text for rule in decision.rules if rule.name == OF_SPEED["min_gain"]]
    if decision.speed is not None:
        names = side_names(decision)
        lines += [speed_line(decision.speed, names), *remarks(decision.speed, names)]
    return lines + ([benefit_line(decision, decision.benefit)] if decision.benefit else [])


def power_lines(decision: BriefDecision) -> list[str]:
    """What this examination could have proved, one line for each rule about a gain."""
    return [power_line(rule.name, rule.power) for rule in _about_gains(decision)]


def power_summary(decision: BriefDecision) -> list[str]:
    """The line of the gain, and that of the margin that needs the most prompts, whatever part of the traffic it is of."""
    gain = [rule for rule in _about_gains(decision) if rule.name.startswith("min_")]
    margins = [rule for rule in _about_gains(decision) if not rule.name.startswith("min_")]
    hardest = [max(margins, key=_prompts_for_margin)] if margins else []
    return [power_line(rule.name, rule.power) for rule in (*gain, *hardest)]


def _about_gains(decision: BriefDecision) -> list[RuleResult]:
    """The rules about a gain: in speed where the kinds differ, since nothing else is compared then."""
    speed = [rule for rule in decision.rules if rule.name.startswith(_SPEED_NAMES)]
    return speed or [rule for rule in decision.rules if rule.name.startswith(OF_ACCEPTANCE)]


def _prompts_for_margin(rule: RuleResult) -> float:
    needed = None if rule.power is None else rule.power.prompts_needed.get("0.95")
    return float("inf") if needed is None else float(needed)


def power_line(name: str, power: Power | None) -> str:
    """The true gains that pass and that are refused with 80% and 95%, and the prompts that a margin needs."""
    of_speed = name.startswith(_SPEED_NAMES)
    if power is None:
        return f"{name}: {_NO_POWER_OF_SPEED if of_speed else NO_POWER}"
    unit = "%" if of_speed else " points"
    passes, refused, over = power.passes, power.refused, counted(power.prompts, power.conversations)
    line = (
        f"{name}: over {over} a true gain of {_gain(passes['0.8'])}{unit} passes with 80% probability and "
        f"{_gain(passes['0.95'])} with 95%; {_gain(refused['0.95'])} or less is refused with 95%"
    )
    if power.equal_passes is None:
        return line
    needed, units = power.prompts_needed, unit_name(power.conversations)
    return (
        f"{line}. If both drafts were equally good, this rule would pass with {100 * power.equal_passes:.0f}% probability; "
        f"for 80% the examination needs {_count(needed['0.8'])} {units}, and for 95% {_count(needed['0.95'])}"
    )


def _gain(value: float) -> str:
    return f"{100 * value:+.2f}"


def _count(count: int | None) -> str:
    return "more than ten million" if count is None else f"{count:,}"


def benefit_line(decision: BriefDecision, benefit: Benefit) -> str:
    """Milliseconds per token, without speculation and with it, and where that holds."""
    where = f"predicted at {benefit.requests_per_second:g} requests/s"
    names, sides = side_names(decision), benefit.sides
    shown = (f"{sides[side].ms_per_token:.3g} ms ({name})" for side, name in names.items() if side in sides)
    return f"time per token {', '.join(shown)}; {where}" if sides else f"the load exceeds capacity; {where}"


def side_names(decision: BriefDecision) -> dict[Side, str]:
    """What each side of the comparison is called within a sentence, in the order of `benefit_line`."""
    return {PLAIN: "plain decoding", BASELINE: baseline_name(decision).removeprefix("the "), CANDIDATE: "candidate"}


def interval(figure: Figure, digits: int) -> str:
    """`0.712 [0.700, 0.724]`."""
    if figure.low is None or figure.high is None:
        return f"{figure.value:.{digits}f} [no interval]"
    return f"{figure.value:.{digits}f} [{figure.low:.{digits}f}, {figure.high:.{digits}f}]"


def points(gain: Figure) -> str:
    """`+3.20 points [+2.10, +4.30]`, from a gain in acceptance rate."""
    shown = f"{100 * gain.value:+.2f} points"
    if gain.low is None or gain.high is None:
        return f"{shown} [no interval]"
    return f"{shown} [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}]"

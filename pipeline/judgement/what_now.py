"""What can be done about a decision: when speculation pays, and which change would make it pay or decide. Pure.

From figures that the decision has anyhow: examined tokens per round, measured step times, the intervals of the rules. A figure
that rests on acceptance without memory (the same for each token, Leviathan et al. 2023, section 3.1) is marked as approximate.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.acceptance.schema import Figures
from pipeline.acceptance.step_times import StepTimes
from pipeline.judgement.headline import OF_ACCEPTANCE
from pipeline.judgement.rule_result import FAIL, PASS, RuleResult

_MOST = 1000  # times as many prompts: no advice
_OF_TIMES = "a round costs"


def what_now(
    rules: Sequence[RuleResult],
    times: StepTimes | None,
    examined: Figures | None,
    next_doubling: float | None,
) -> list[str]:
    """Lines for people, those about rules first. `times` and `examined` are of the same draft, None where that is not known;
    `next_doubling`: what twice as many completions would add to its acceptance rate, by the learning curve."""
    lines = list[str]()
    if times is not None and examined is not None:
        lines.append(_break_even(times, examined.mean_acceptance_length, examined.acceptance_rate.value))
    return [*_for_rules(rules, next_doubling), *lines]


def without_step_times(lines: Sequence[str]) -> list[str]:
    """Those of the lines that do not rest on step times."""
    return [line for line in lines if _OF_TIMES not in line]


def _break_even(times: StepTimes, per_round: Mapping[int, float], rate: float) -> str:
    """What a round costs and must give. In steps of plain decoding, on the machine of the run."""
    # Within each turn, as the speedup is: what else the machine does in a turn affects both.
    cost = {
        length: median(drafted / plain for drafted, plain in zip(seconds, times.plain, strict=True))
        for length, seconds in times.rounds.items()
    }
    best = max(cost, key=lambda length: per_round[length] / median(times.rounds[length]))
    tokens = f"{best} draft tokens" if best > 1 else "1 draft token"
    said = f"{tokens}: {_OF_TIMES} {cost[best]:.2f} steps of plain decoding and gives {per_round[best]:.2f} tokens"
    needed = _acceptance_for(cost[best], best)
    if per_round[best] >= cost[best]:
        return f"{said}; it pays while the acceptance rate is above about {needed or 0.0:.2f} (now {rate:.2f})"
    said = f"no draft length is known to pay on this machine. With {said}"
    smaller = f"a smaller draft{_cheaper(cost, best, per_round)}"
    if needed is None:
        return f"{said}; no acceptance rate makes a round of more than {best + 1} steps pay: choose {smaller}"
    return f"{said}; it pays from an acceptance rate of about {needed:.2f} on (now {rate:.2f}), or with {smaller}"


def _cheaper(cost: Mapping[int, float], best: int, per_round: Mapping[int, float]) -> str:
    """What a draft token costs, and may cost at this acceptance. Empty where one length was timed, or none is cheap enough."""
    shortest, longest = min(cost), max(cost)
    if shortest == longest:
        return ""
    each = (cost[longest] - cost[shortest]) / (longest - shortest)
    may = each - (cost[best] - per_round[best]) / best
    return f": a draft token costs {each:.0%} of a step, and may cost {may:.0%}" if may > 0 else ""


def _acceptance_for(tokens: float, length: int) -> float | None:
    """The acceptance rate at which a round of `length` draft tokens gives `tokens` on average; None above all of them."""
    if tokens > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if iid_tokens_per_call(middle, length) < tokens else (low, middle)
    return high


def _for_rules(rules: Sequence[RuleResult], next_doubling: float | None) -> list[str]:
    """Rules about gains in acceptance rate that did not pass: how many times the prompts would decide the hardest, or what
    training would have to add."""
    short, factors = dict[str, float](), dict[str, float]()
    for rule in rules:
        gain, threshold = rule.figure, rule.threshold
        is_open = rule.verdict != PASS and rule.name.startswith(OF_ACCEPTANCE)
        if not is_open or gain is None or gain.low is None or threshold is None:
            continue
        above = gain.value - threshold
        if rule.verdict == FAIL:
            short[rule.name] = -above
        elif above > 0:
            factors[rule.name] = ((gain.value - gain.low) / above) ** 2
    if short:
        name = max(short, key=lambda domain: short[domain])
        lacks = f"{name} lacks {100 * short[name]:.2f} points, and more prompts would not decide otherwise"
        return [f"{lacks}; {_training(next_doubling, short[name])}"]
    if factors and (most := max(factors.values())) < _MOST:
        name = max(factors, key=lambda factor: factors[factor])
        return [
            f"{name}: about {most:.1f} times as many examination prompts decide it, if the gain stays what it is (more rows, or "
            "a larger corpus.splits.examination)"
        ]
    return []


def _training(next_doubling: float | None, needed: float) -> str:
    if next_doubling is None:
        return "distill.learning_curve measures what more completions would add"
    enough = "which is enough" if next_doubling >= needed else "which is not enough: train longer, or a larger draft"
    return f"twice as many completions would add about {100 * next_doubling:.1f} points, {enough}"

"""The rule on the age of the completions. Imports nothing heavy: the runner asks it before a stored decision is used again."""

from pipeline.acceptance.schema import Figure
from pipeline.judgement.rule_result import FAIL, INCONCLUSIVE, PASS, RuleResult

_NAME = "max_examination_days"
_CLOCKS = 0.1  # days by which the clocks of two machines may differ


def examination_age(days: float | None, most: int) -> RuleResult:
    """Old completions are little evidence about today's traffic. Those that are dated in the future have no known age."""
    if days is None:
        text = "the age of the completions is not known"
        return RuleResult(name=_NAME, verdict=INCONCLUSIVE, text=text, threshold=float(most))
    if days < -_CLOCKS:
        text = (
            f"the completions are dated {-days:.1f} days in the future, so their age is not known; set the clock, or "
            "generate them again"
        )
        return RuleResult(name=_NAME, verdict=FAIL, text=text, threshold=float(most))
    days = max(days, 0.0)
    return RuleResult(
        name=_NAME,
        verdict=PASS if days <= most else FAIL,
        text=f"the completions are {days:.1f} days old, at most {most} allowed",
        figure=Figure(days, None, None, 0),
        threshold=float(most),
    )

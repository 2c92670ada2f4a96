"""Whether the parts of a decision can belong together. Pure."""

from pipeline.acceptance.contradictions import check_figures
from pipeline.judgement.rule_result import PASS
from pipeline.judgement.schema import BASELINE, CANDIDATE, PROMOTE, Decision

_ROUNDING = 1e-6


def check_decision(decision: Decision) -> None:
    """ValueError for a draft that is promoted although a rule did not pass, and for a gain that is not that of the two drafts."""
    failed = [rule.name for rule in decision.rules if rule.verdict != PASS]
    if decision.verdict == PROMOTE and (failed or not decision.rules):
        raise ValueError(f"verdict is {PROMOTE}, and {f'{failed[0]} did not pass' if failed else 'there is no rule'}")
    check_figures(decision)
    if decision.gains is None or CANDIDATE not in decision.drafts or BASELINE not in decision.drafts:
        return
    ours, theirs = (decision.drafts[side].acceptance_rate.value for side in (CANDIDATE, BASELINE))
    gain = decision.gains.acceptance_rate.value
    if abs(gain - (ours - theirs)) > _ROUNDING:
        raise ValueError(f"gains.acceptance_rate is {gain:.6g}, and the drafts differ by {ours - theirs:.6g}")

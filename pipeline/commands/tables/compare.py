"""What `understudy compare` prints: figures of two drafts and their paired differences."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.acceptance.baseline import ExaminedCounts
from pipeline.acceptance.schema import Figure
from pipeline.commands.tables.console import Report
from pipeline.drafts.kinds import rates_are_of, rates_compare
from pipeline.errors import UsageError
from pipeline.judgement.comparison import compared_figures, paired_gains
from pipeline.judgement.headline import interval, points
from pipeline.judgement.regression import unseen_prompts
from pipeline.judgement.schema import BASELINE, CANDIDATE, ComparedFigures, Gains, Side

COLUMNS = ("figure", "prompts", "A", "B", "B - A")


@dataclass(frozen=True, kw_only=True)
class ComparedDrafts:
    """Figures of two drafts, `candidate` the other one, and the differences, other minus one."""

    gamma: int
    confidence: float  # of the intervals
    left_out: int  # prompts that a draft was trained on
    same_draft: bool = False  # equal weights
    rates_differ: bool = False  # the acceptance rates are over different tokens, as of drafts of different kinds
    drafts: dict[Side, ComparedFigures]
    gains: Gains


def compare_examined(one: ExaminedCounts, other: ExaminedCounts, *, gamma: int, domain: str | None) -> ComparedDrafts:
    """`other` is compared with `one`. UsageError for a domain without prompts; raises as `compare`."""
    theirs, ours = unseen_prompts(one, other)
    left_out = len(one.counts) - len(theirs)
    if domain is not None:
        known = sorted({item.domain for item in theirs})
        theirs, ours = ([item for item in counts if item.domain == domain] for counts in (theirs, ours))
        if not ours:
            raise UsageError(f"--domain {domain}: no prompt of it; there are {', '.join(known)}; name one of them")
    gamma, confidence = min(gamma, len(ours[0].calls)), one.conditions.settings.confidence
    return ComparedDrafts(
        gamma=gamma,
        confidence=confidence,
        left_out=left_out,
        same_draft=one.digest == other.digest,
        rates_differ=not rates_compare((one.kind, other.kind)),
        drafts={
            CANDIDATE: compared_figures(ours, gamma, confidence),
            BASELINE: compared_figures(theirs, gamma, confidence),
        },
        gains=paired_gains(ours, theirs, confidence),
    )


def print_comparison(labels: Sequence[str], comparison: ComparedDrafts) -> None:
    """Print the comparison to stdout."""
    out = Report()
    out.line(f"A: {labels[0]}")
    out.line(f"B: {labels[1]}")
    if comparison.same_draft:
        out.text("A and B are the same draft, with equal weights: there is nothing to compare")
    ours, theirs, gains, gamma = (
        comparison.drafts[CANDIDATE],
        comparison.drafts[BASELINE],
        comparison.gains,
        comparison.gamma,
    )
    rows = [_row("acceptance rate", theirs.acceptance_rate, ours.acceptance_rate, gains.acceptance_rate)]
    omega = [side.tokens_per_target_call[gamma] for side in (theirs, ours)]
    gain = gains.tokens_per_target_call[gamma]
    shown = f"{gain.value:+.3f}" + ("" if gain.low is None else f" [{gain.low:+.3f}, {gain.high:+.3f}]")
    rows.append(
        [f"tokens / target call, γ={gamma}", str(ours.prompts), *(interval(figure, 2) for figure in omega), shown]
    )
    for domain, entry in ours.domains.items() if len(ours.domains) > 1 else ():
        before = theirs.domains[domain].acceptance_rate
        rows.append(_row(f"acceptance rate, {domain}", before, entry.acceptance_rate, gains.domains[domain]))
    for segment, part in ours.by_segment.items():
        if segment in gains.segments and segment in theirs.by_segment:
            before = theirs.by_segment[segment].acceptance_rate
            rows.append(
                _row(f"acceptance rate, segment {segment}", before, part.acceptance_rate, gains.segments[segment])
            )
    out.table(COLUMNS, rows, left=("figure",))
    out.text(f"[{100 * comparison.confidence:g}% intervals]")
    if comparison.rates_differ:
        out.text(rates_are_of((True, False), gamma))
    if comparison.left_out:
        out.text(f"{comparison.left_out} prompts left out, because a draft was trained on them")


def _row(name: str, before: Figure, after: Figure, gain: Figure) -> list[str]:
    return [name, str(gain.prompts), interval(before, 3), interval(after, 3), points(gain)]

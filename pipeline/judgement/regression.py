"""The regression check: compares a draft's counts with a baseline, prompt by prompt. Pure.

It passes only if the lower bound of (draft - baseline) exceeds -margin over all tokens, and that of each large segment the
segments' margin: a draft may win on answers what it loses on tool calls. What does not pass is a regression only where the draft
is proved to be worse; else it is undecided. Prompts that either draft was trained on do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from pipeline.acceptance.baseline import Conditions, ExaminedCounts
from pipeline.acceptance.gains import acceptance_gain, segment_gain
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts
from pipeline.drafts.kinds import KindName, rates_compare
from pipeline.errors import Refused, UsageError
from pipeline.judgement.judged_segments import segment_shares
from pipeline.judgement.power import power_of
from pipeline.judgement.rule_result import Power

Outcome = Literal["passed", "undecided", "regression"]  # in the order of gravity
NOT_JUDGED = 1.0  # margin of the segments with which they are shown only: a rate cannot fall by more
# Where prompts are left out, so many conversations or half of them must remain: a draft must not choose the few that it is
# compared on.
_LEAST_PROMPTS = 40


@dataclass(frozen=True, kw_only=True)
class DomainComparison:
    """The same figures over the prompts of one domain. For information: the verdict does not depend on them."""

    domain: str
    draft: float  # acceptance rate
    baseline: float
    difference: Interval


@dataclass(frozen=True, kw_only=True)
class SegmentComparison:
    """The same figures over the tokens of one segment, of the prompts that have it."""

    segment: str
    share: float  # of all tokens
    draft: float  # acceptance rate
    baseline: float
    difference: Interval
    margin: float | None  # None: it is for information, because it is small or because no segment is judged
    power: Power | None  # for the margin; None also where there is no margin

    @property
    def outcome(self) -> Outcome:
        """The outcome of the segment; one that is not judged passes."""
        return "passed" if self.margin is None else _outcome(self.difference, self.margin)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of a check."""

    draft: float  # acceptance rate
    baseline: float
    difference: Interval
    margin: float
    power: Power | None  # of the check; None where there is no interval, or the drafts do not differ
    left_out_prompts: tuple[str, ...]  # ids of the prompts that one of the drafts was trained on
    domains: tuple[DomainComparison, ...]  # by name; empty if there is one domain only
    segments: tuple[SegmentComparison, ...]  # by name; empty where all tokens are of one segment
    conditions: Conditions
    digest: str  # of the draft
    baseline_digest: str
    hardware: str  # class of the machine
    baseline_hardware: str

    @property
    def of_all_tokens(self) -> Outcome:
        """The outcome without the segments."""
        return _outcome(self.difference, self.margin)

    @property
    def outcome(self) -> Outcome:
        """The gravest of all tokens and of the segments."""
        return max((self.of_all_tokens, *(segment.outcome for segment in self.segments)), key=get_args(Outcome).index)

    @property
    def passed(self) -> bool:
        """Whether it is proved of all tokens and of each judged segment that they lose less than the margin."""
        return self.outcome == "passed"

    @property
    def left_out(self) -> int:
        """How many prompts were left out, because one of the drafts was trained on them."""
        return len(self.left_out_prompts)


def _outcome(difference: Interval, margin: float) -> Outcome:
    """A regression where the draft is proved to be worse; undecided where the interval has room for no loss, or there is none."""
    if difference.low > -margin:
        return "passed"
    return "regression" if difference.high < 0 else "undecided"


def differing(draft: Conditions, baseline: Conditions) -> list[str]:
    """The names of the conditions that differ, for people."""
    return [
        field.name.replace("_", " ")
        for field in fields(Conditions)
        if getattr(draft, field.name) != getattr(baseline, field.name)
    ]


def require_same_rates(kind: KindName, baseline: ExaminedCounts) -> None:
    """UsageError for a draft whose acceptance rate is over other tokens than the baseline's."""
    if not rates_compare((kind, baseline.kind)):
        raise UsageError(
            f"the draft is of the kind {kind} and the baseline is of a draft of the kind {baseline.kind}: their acceptance "
            "rates are over different tokens; write a baseline of this kind with --update-baseline, or see the tokens per "
            "target call of both with `understudy compare`"
        )


def compare(draft: ExaminedCounts, baseline: ExaminedCounts, margin: float, segment_margin: float) -> Comparison:
    """Paired comparison of acceptance rates, over the prompts that neither draft was trained on, at the baseline's confidence.
    `segment_margin`: of each judged segment; with `NOT_JUDGED` none is.

    UsageError if prompts or their tokens differ, Refused if no prompt is left, ValueError on empty input.
    """
    ours, theirs = unseen_prompts(draft, baseline)
    kept, confidence = {item.id for item in ours}, baseline.conditions.settings.confidence
    difference = acceptance_gain(ours, theirs, confidence)
    return Comparison(
        draft=_rate(ours),
        baseline=_rate(theirs),
        difference=difference,
        margin=margin,
        power=power_of(difference, -margin, confidence),
        left_out_prompts=tuple(item.id for item in draft.counts if item.id not in kept),
        domains=_by_domain(ours, theirs, confidence),
        segments=_by_segment(ours, theirs, segment_margin, confidence),
        conditions=baseline.conditions,
        digest=draft.digest,
        baseline_digest=baseline.digest,
        hardware=draft.hardware,
        baseline_hardware=baseline.hardware,
    )


def unseen_prompts(draft: ExaminedCounts, baseline: ExaminedCounts) -> tuple[list[PromptCounts], list[PromptCounts]]:
    """The counts of both over the prompts that neither draft was trained on, in one order. Raises as `compare`."""
    _check_rows(draft.counts, baseline.counts)
    seen = draft.trained_on | baseline.trained_on
    ours, theirs = ([item for item in examined.counts if item.id not in seen] for examined in (draft, baseline))
    count, left = len(draft.counts), len(ours)
    units, units_left = (len({item.conversation for item in counts}) for counts in (draft.counts, ours))
    if left < count and units_left < min(_LEAST_PROMPTS, units / 2):
        raise Refused(
            f"inconclusive: a draft was trained on {'all' if not left else count - left} of the {count} examination prompts, so "
            f"{left or 'none'} are left to compare; use completions of other prompts"
        )
    return ours, theirs


def _by_domain(
    draft: Sequence[PromptCounts], baseline: Sequence[PromptCounts], confidence: float
) -> tuple[DomainComparison, ...]:
    names = sorted({item.domain for item in draft})
    if len(names) < 2:
        return ()
    domains = []
    for name in names:
        ours, theirs = ([item for item in counts if item.domain == name] for counts in (draft, baseline))
        difference = acceptance_gain(ours, theirs, confidence)
        domains.append(DomainComparison(domain=name, draft=_rate(ours), baseline=_rate(theirs), difference=difference))
    return tuple(domains)


def _by_segment(
    draft: Sequence[PromptCounts], baseline: Sequence[PromptCounts], margin: float, confidence: float
) -> tuple[SegmentComparison, ...]:
    segments = []
    for part in segment_shares(draft):
        difference = segment_gain(draft, baseline, part.name, confidence)
        of_one = margin if part.judged and margin < NOT_JUDGED else None
        segments.append(
            SegmentComparison(
                segment=part.name,
                share=part.share,
                draft=_segment_rate(draft, part.name),
                baseline=_segment_rate(baseline, part.name),
                difference=difference,
                margin=of_one,
                power=None if of_one is None else power_of(difference, -of_one, confidence),
            )
        )
    return tuple(segments)


def _check_rows(draft: Sequence[PromptCounts], baseline: Sequence[PromptCounts]) -> None:
    """Equal completions give equal rows."""
    if len(draft) != len(baseline):
        raise UsageError(f"--baseline: has {len(baseline)} prompts, and the completions have {len(draft)}; {_ANEW}")
    for ours, theirs in zip(draft, baseline, strict=True):
        facts = _facts(ours)
        for name, fact in _facts(theirs).items():
            if facts[name] != fact:
                raise UsageError(
                    f"--baseline: prompt {theirs.id} has {name} {fact!r}, and the completions have {facts[name]!r}; {_ANEW}"
                )


def _facts(row: PromptCounts) -> dict[str, object]:
    """What does not depend on the draft."""
    return {
        "id": row.id,
        "conversation": row.conversation,
        "domain": row.domain,
        "tokens": row.tokens,
        "segments": {name: counts.tokens for name, counts in sorted(row.segments.items())},
    }


_ANEW = "the file does not belong to these completions: write it again with --update-baseline"


def _rate(counts: Sequence[PromptCounts]) -> float:
    return sum(item.accepted for item in counts) / sum(item.examined for item in counts)


def _segment_rate(counts: Sequence[PromptCounts], name: str) -> float:
    of_segment = [item.segments[name] for item in counts if name in item.segments]
    return sum(part.accepted for part in of_segment) / sum(part.examined for part in of_segment)

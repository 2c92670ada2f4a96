"""The figures of a decision: the drafts over the same prompts as the rules, and the paired gains. Pure."""

from collections.abc import Sequence

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import PromptCounts, acceptance_gain, omega_gain, segment_gain, shared_conversations
from pipeline.acceptance.profile_file import Examination
from pipeline.acceptance.schema import figures_of
from pipeline.judgement.schema import ComparedFigures, DraftFigures, Gains, GreedyFigures


def compared_figures(counts: Sequence[PromptCounts], gamma: int, confidence: float) -> ComparedFigures:
    """All figures of one draft over these prompts, also by domain. UnderstudyError without a prompt."""
    shared = shared_conversations(item.conversation for item in counts)
    tally = AcceptanceTally(len(counts[0].calls) if counts else 1, shared)
    tally.add(counts)
    return ComparedFigures(**figures_of(tally.figures(confidence)), domains=tally.domains(gamma, confidence))


def draft_figures(
    examination: Examination, counts: Sequence[PromptCounts], gamma: int, confidence: float
) -> DraftFigures:
    """The same of an examined draft. `counts`: those of its prompts that are compared."""
    profile, greedy = examination.profile, examination.profile.greedy
    return DraftFigures(
        **vars(compared_figures(counts, gamma, confidence)),
        draft=profile.draft,
        greedy=None if greedy is None else GreedyFigures(greedy.acceptance_rate, greedy.loop_share),
        conditions=profile.conditions,
    )


def paired_gains(candidate: Sequence[PromptCounts], baseline: Sequence[PromptCounts], confidence: float) -> Gains:
    """Gains of the candidate over the baseline on the same prompts. UnderstudyError if the prompts differ or there are none."""
    by_domain: dict[str, tuple[list[PromptCounts], list[PromptCounts]]] = {}
    for ours, theirs in zip(candidate, baseline, strict=True):
        pair = by_domain.setdefault(ours.domain, ([], []))
        pair[0].append(ours)
        pair[1].append(theirs)
    segments = sorted({name for item in candidate for name in item.segments})
    return Gains(
        acceptance_gain(candidate, baseline, confidence).figure,
        {
            gamma: omega_gain(candidate, baseline, gamma, confidence).figure
            for gamma in range(1, len(candidate[0].calls) + 1)
        },
        {domain: acceptance_gain(*by_domain[domain], confidence).figure for domain in sorted(by_domain)},
        {name: segment_gain(candidate, baseline, name, confidence).figure for name in segments},
    )

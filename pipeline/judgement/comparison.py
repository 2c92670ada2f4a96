"""The figures of a decision: the drafts over the same prompts as the rules, and the paired gains. Pure."""

from collections.abc import Sequence

from pipeline.acceptance.count_table import BLOCK, CountTable
from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.gains import acceptance_gain, omega_gain, segment_gain
from pipeline.acceptance.profile import PromptCounts, shared_conversations
from pipeline.acceptance.schema import AcceptanceProfile, figures_of
from pipeline.judgement.schema import ComparedFigures, DraftFigures, Gains, GreedyFigures


def compared_figures(counts: Sequence[PromptCounts], gamma: int, confidence: float) -> ComparedFigures:
    """All figures of one draft over these prompts, also by domain. UnderstudyError without a prompt."""
    table = CountTable.of(counts)
    tally = AcceptanceTally(max(1, table.gammas), shared_conversations(table.conversations))
    for begin in range(0, len(table), BLOCK):
        tally.add(table[begin : begin + BLOCK])
    return ComparedFigures(**figures_of(tally.figures(confidence)), domains=tally.domains(gamma, confidence))


def draft_figures(
    profile: AcceptanceProfile, counts: Sequence[PromptCounts], gamma: int, confidence: float
) -> DraftFigures:
    """The figures of an examined draft. `counts`: those of its prompts that are compared."""
    greedy = profile.greedy
    return DraftFigures(
        **vars(compared_figures(counts, gamma, confidence)),
        draft=profile.draft,
        greedy=None if greedy is None else GreedyFigures(greedy.acceptance_rate, greedy.loop_share),
        conditions=profile.conditions,
    )


def paired_gains(candidate: Sequence[PromptCounts], baseline: Sequence[PromptCounts], confidence: float) -> Gains:
    """Gains of the candidate over the baseline on the same prompts. UnderstudyError if the prompts differ or there are none."""
    ours, theirs = CountTable.of(candidate), CountTable.of(baseline)
    return Gains(
        acceptance_gain(ours, theirs, confidence).figure,
        {gamma: omega_gain(ours, theirs, gamma, confidence).figure for gamma in range(1, ours.gammas + 1)},
        {
            domain: acceptance_gain(ours.in_domain(domain), theirs.in_domain(domain), confidence).figure
            for domain in sorted(set(ours.domains))
        },
        {name: segment_gain(ours, theirs, name, confidence).figure for name in sorted(ours.segments)},
    )

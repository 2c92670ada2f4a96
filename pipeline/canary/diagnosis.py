"""Is it the target, the traffic, or the engine and its draft? A pure function of the evidence for each.

Text that differs is evidence about the target or its arithmetic, never about the draft: the target alone decides what is emitted.
The draft is judged by counts on the emitted tokens, whatever they are, so the two answers do not depend on each other, but for a
draft that reads the target's hidden states. The target is judged by two kinds of evidence, log p of known tokens and greedy text.
Where they exclude each other, no target explains them: the engine is at fault, and the answer is "contradictory". Both are judged
token by token: a target may have changed much at few tokens and nothing at all others, of which a mean is no evidence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom

from pipeline.canary.arithmetic import most_beyond, most_of_token, near_tie
from pipeline.canary.schema import (
    BAD,
    LARGEST,
    Answer,
    Divergence,
    DraftEvidence,
    RequestEvidence,
    TargetEvidence,
    Verdict,
)
from pipeline.engines.counts import Counts
from pipeline.servers.identity import is_rounding

_LISTED = 3
_OTHER_WEIGHTS = "; the engine drafts with other weights, or in another way"
_WORST: tuple[Verdict, ...] = (*BAD, "inconclusive", "as_examined")
# A change of the target that swaps two tokens moves log p of at least one of them by half of what they are then apart, or by less
# where the rest of the distribution pays for it. Two assumptions, both wide: a quarter, and that tokens of the text are not moved
# ten times as far as the known token that is moved most.
_OF_GAP, _MOST_TIMES = 4, 10
_CHANCE = 1e-4  # of such a text, by the share of known tokens that were moved so far
_NO_LOG_P = 9000.0  # nats: vLLM and SGLang give -9999 where there is none
_MOVED, _SHOWN_IN_TEXT = 0.25, 50  # of so many tokens that were moved by so many nats, one is another greedy token


def about_target(evidence: TargetEvidence) -> Answer:
    """Whether the engine serves the target that was examined."""
    difference, tie = evidence.log_p_difference, near_tie(evidence.dtype == "float32")
    scored = (
        f"log p of known tokens is not given ({evidence.problem})"
        if difference is None
        else f"log p of {evidence.log_p_tokens} known tokens differs by {difference:.2g} on average"
        + (f", by {evidence.log_p_largest[0]:.2g} at most" if evidence.log_p_largest else "")
    )
    if contradiction := _contradiction(evidence, scored):
        return Answer("contradictory", contradiction)
    if difference is not None and not is_rounding(difference, evidence.dtype):
        coarser = evidence.dtype == "float32" and is_rounding(difference, "bfloat16")
        hint = "; a coarser number format than float32 would explain it" if coarser else ""
        return Answer("changed", f"{scored}, more than rounding in {evidence.dtype}{hint}")
    bound = most_of_token(evidence.dtype)
    if _moved(evidence, bound) > most_beyond(evidence.dtype == "float32", evidence.log_p_tokens):
        tokens = f"by more than {bound:g} at {_moved(evidence, bound)} of them"
        return Answer("changed", f"{scored}, {tokens}, more than rounding in {evidence.dtype}")
    unknown = [divergence for divergence in evidence.divergences if divergence.gap is None]
    clear = _clear(evidence)
    if clear:
        return Answer("changed", f"{_other_text(evidence, clear, f'where {tie:g} could be a tie')}; {scored}")
    if unknown or (difference is None and not evidence.completions):
        return Answer(
            "inconclusive",
            f"{len(unknown)} of {evidence.completions} greedy completions differ from the stored ones at tokens whose log p is "
            f"not known; {scored}",
        )
    ties = len(evidence.divergences)
    near = f", {ties} first differ at a near-tie" if ties else ""
    return Answer(
        "as_examined",
        f"{scored}; {evidence.equal} of {evidence.completions} greedy completions are the stored ones{near}",
    )


def _contradiction(evidence: TargetEvidence, scored: str) -> str:
    """What excludes each other; empty where a target explains both kinds of evidence."""
    difference, clear = evidence.log_p_difference, _clear(evidence)
    against = [divergence for divergence in clear if divergence.against]
    if against:
        text = _other_text(evidence, against, "the stored one above the emitted one")
        return f"the engine does not emit what its own log p imply: {text}; {scored}"
    if difference is None:
        return ""
    if none := _moved(evidence, _NO_LOG_P):
        return (
            f"the engine returns its lowest value for the log p of {none} of {evidence.log_p_tokens} known tokens, as for logits "
            "that are NaN and for tokens that are cut off: its arithmetic fails there, or its log p are processed"
        )
    if far := _not_of_one_target(evidence, clear):
        text = _other_text(evidence, far, "more than known tokens allow")
        return f"the engine's log p and its text are not of one target: {scored}, and {text}"
    moved = _moved(evidence, _MOVED)
    if not evidence.divergences and moved * evidence.text_tokens > _SHOWN_IN_TEXT * evidence.log_p_tokens:
        return (
            f"the engine's log p are not those of what it emits: {scored}, by more than {_MOVED:g} at {moved} of them, and all "
            f"{evidence.text_tokens} greedy tokens are the stored ones; they may be processed (vLLM's --logprobs-mode), or of "
            "another temperature"
        )
    return ""


def _moved(evidence: TargetEvidence, least: float) -> int:
    """Known tokens whose log p differs by more than `least`: `LARGEST` or more are counted as so many."""
    return sum(difference > least for difference in evidence.log_p_largest)


def _not_of_one_target(evidence: TargetEvidence, clear: Sequence[Divergence]) -> list[Divergence]:
    """The divergences that are further from the record than known tokens are, or more than those that were moved as far allow."""
    largest = max(evidence.log_p_largest, default=0.0)
    most = max(_MOST_TIMES * largest, 2 * most_of_token(evidence.dtype))
    if far := [divergence for divergence in clear if (divergence.gap or 0.0) > most]:
        return far
    by_gap = sorted(clear, key=lambda divergence: -(divergence.gap or 0.0))
    for count, divergence in enumerate(by_gap, start=1):
        moved = _moved(evidence, (divergence.gap or 0.0) / _OF_GAP)
        if moved >= LARGEST:
            return []
        share = (moved + 1) / (evidence.log_p_tokens + 1)
        if evidence.text_tokens and binom.sf(count - 1, evidence.text_tokens, share) < _CHANCE:
            return list(clear)
    return []


def _clear(evidence: TargetEvidence) -> list[Divergence]:
    """Answers that leave the stored ones at no near-tie."""
    tie = near_tie(evidence.dtype == "float32")
    return [divergence for divergence in evidence.divergences if divergence.gap is not None and divergence.gap > tie]


def _other_text(evidence: TargetEvidence, clear: Sequence[Divergence], what: str) -> str:
    first = clear[0]
    return (
        f"{len(clear)} of {evidence.completions} greedy completions are not the stored ones (first {first.prompt} at token "
        f"{first.position}: {_token(first.emitted)} for {_token(first.stored)}, log p {first.gap:.2g} apart, {what})"
    )


@dataclass(frozen=True)
class CountersVerdict:
    """Whether production's counters fell, by the state of the watch; None where that does not show it, and why."""

    fell: bool | None
    why: str = ""


def about_draft(evidence: DraftEvidence, reads: Answer | None = None) -> Answer:
    """Whether the engine's counts are those of the examined draft on the tokens that it emitted. `reads`: what is known of the
    target, for a draft that reads its hidden states."""
    answer = _about_counts(evidence)
    if answer.verdict != "not_as_examined" or evidence.lengths or reads is None or reads.verdict == "as_examined":
        return answer
    other = "is not the one that was examined" if reads.verdict == "changed" else "may not be the one that was examined"
    return Answer(
        "inconclusive",
        f"the draft reads hidden states of the target, which {other}; {answer.why.removesuffix(_OTHER_WEIGHTS)}",
    )


def _about_counts(evidence: DraftEvidence) -> Answer:
    if not evidence.lengths and (evidence.problem or not evidence.requests):
        return Answer("inconclusive", evidence.problem or "no answer has the two tokens that a draft needs")
    allowed = most_beyond(evidence.exact, evidence.positions)
    unexplained = [request for request in evidence.requests if request.beyond is None]
    beyond = sum(len(request.beyond or ()) for request in evidence.requests)
    ties = sum(len(request.ties) for request in evidence.requests)
    by_request = evidence.source == "answers"
    if evidence.lengths:
        is_other = "are not" if unexplained or beyond > allowed else "are"
        weights = f"at that length its counts {is_other} those of the examined draft"
        reason = weights if evidence.gamma is not None and evidence.requests else "its draft length changes"
        return Answer(
            "not_as_examined", f"{evidence.lengths}; {reason}; start it with the speculative config of the export"
        )
    if unexplained or beyond > allowed:
        wrong = [request for request in evidence.requests if request.beyond is None or request.beyond]
        what = f"counts of {len(wrong)} of {len(evidence.requests)} requests" if by_request else "engine's counters"
        return Answer(
            "not_as_examined",
            f"the {what} are not those of the examined draft on the emitted tokens: {_shown(wrong)}{_OTHER_WEIGHTS}",
        )
    notes = f"; {ties} of {evidence.near_ties} near-ties of the draft went the other way" if ties else ""
    notes += f"; {beyond} other choices, of at most {int(allowed)} that the number format explains" if beyond else ""
    total = sum((request.counted for request in evidence.requests[1:]), start=evidence.requests[0].counted)
    what = f"counts of {len(evidence.requests)} requests" if by_request else "engine's counters"
    notes += (
        f"; {evidence.others} other answers had drafts of several lengths, and were not compared"
        if evidence.others
        else ""
    )
    notes += "" if evidence.exported else "; no export states how many tokens it should draft at a time"
    at = f", {evidence.gamma:g} tokens at a time" if evidence.gamma is not None else ""
    return Answer(
        "as_examined",
        f"the {what} are those of the examined draft on the emitted tokens{at}: {_counts(total)}{notes}",
    )


def about_traffic(counters: CountersVerdict, target: Answer, draft: Answer) -> Answer:
    """Whether production's prompts are other than the examined ones: its counters fell, and the canary did not."""
    if counters.fell is None:
        return Answer("inconclusive", counters.why)
    if not counters.fell:
        return Answer("as_examined", "production's counters did not fall")
    if target.is_bad or draft.is_bad:
        return Answer("inconclusive", "production's counters fell, and the canary found another reason")
    if "inconclusive" in (target.verdict, draft.verdict):
        return Answer("inconclusive", "production's counters fell, and the canary could not judge target and draft")
    return Answer("changed", "production's counters fell, while target and draft are those that were examined")


def over_all(answers: Sequence[tuple[str, Answer]]) -> Answer:
    """The worst of the engines' answers, with those engines named; where all are right, the first one's. `answers`: by URL."""
    if not answers:
        return Answer("inconclusive", "no engine answered")
    verdict = min((answer.verdict for _, answer in answers), key=_WORST.index)
    why = [(url, answer.why) for url, answer in answers if answer.verdict == verdict]
    if len(answers) == 1:
        return Answer(verdict, why[0][1])
    if verdict == "as_examined":
        return Answer(verdict, f"all {len(answers)} engines; {why[0][0]}: {why[0][1]}")
    more = f"; and {len(why) - _LISTED} more" if len(why) > _LISTED else ""
    return Answer(verdict, "; ".join(f"{url}: {text}" for url, text in why[:_LISTED]) + more)


def _token(token: int | None) -> str:
    return "the end" if token is None else str(token)


def _shown(wrong: Sequence[RequestEvidence]) -> str:
    first = wrong[0]
    name = f"{first.prompt}: " if first.prompt else ""
    return f"{name}{_counts(first.counted)} counted, {_counts(first.least, first.most)} expected"


def _counts(least: Counts, most: Counts | None = None) -> str:
    """The counts as text, such as `19 drafts, 43 to 45 accepted`; what is not counted is left out."""
    words = []
    for name, text in (("drafts", "drafts"), ("draft_tokens", "draft tokens"), ("accepted", "accepted")):
        low, high = getattr(least, name), getattr(most or least, name)
        if low is not None and high is not None and not (name == "draft_tokens" and least.drafts is not None):
            words.append(f"{low:.0f} {text}" if low == high else f"{low:.0f} to {high:.0f} {text}")
    return ", ".join(words)

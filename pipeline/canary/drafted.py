"""The examined draft on the tokens that an engine emitted, beside what the engine counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.acceptance.explained_counts import Drafted, DraftingRule, counts_of, explain
from pipeline.canary.arithmetic import most_beyond
from pipeline.canary.asking import Asked
from pipeline.canary.choices import CanaryDraft, Emission
from pipeline.canary.examined import ExaminedRun
from pipeline.canary.lengths import ExpectedLengths, LengthsSeen, lengths_seen, not_as_exported
from pipeline.canary.schema import DraftEvidence, RequestEvidence
from pipeline.config.server import Api
from pipeline.engines.counts import Counts
from pipeline.errors import UnderstudyError
from pipeline.watch.increments import Increment

_LONGEST = 3  # times the exported draft length: as far as another one is looked for
# What an operator switches on to get counts by request (docs/logs.md).
_SWITCH = {
    "vllm": "start vLLM with --per-request-spec-decode-metrics summary",
    "sglang": "SGLang gives them with every answer while it speculates: start it with a draft",
    "llama.cpp": "llama-server gives them with every answer while it speculates: start it with a draft",
}


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The answers of an engine beside the examined draft's choices on them: what is the same at any draft length.

    `counts`: of each answer, by its number. `pooled`: of all answers together, where single ones have none. `drafted`: the
    draft's choices, by number of the answer.
    """

    examined: ExaminedRun
    api: Api
    exact: bool
    counts: Mapping[int, Counts]
    pooled: Counts | None
    drafted: Mapping[int, Drafted]

    @property
    def positions(self) -> int:
        return sum(drafted.tokens - 1 for drafted in self.drafted.values())

    @property
    def near_ties(self) -> int:
        return sum(int(drafted.is_tie[1:].sum()) for drafted in self.drafted.values())

    def at(self, lengths: Sequence[int | None]) -> list[RequestEvidence]:
        """The evidence where each answer had this draft length; answers without one are left out."""
        rules = [_rule(self.api, length, self.examined.max_tokens) if length else None for length in lengths]
        if self.pooled is not None:
            return [_pooled(list(self.drafted.values()), rule, self.pooled) for rule in rules if rule is not None]
        return [
            _request(self.examined.completions[number].id, self.drafted[number], rule, counted)
            for (number, counted), rule in zip(self.counts.items(), rules, strict=True)
            if rule is not None
        ]

    def is_explained(self, requests: Sequence[RequestEvidence]) -> bool:
        """Whether these are the counts of the examined draft."""
        if not all(request.beyond is not None for request in requests):
            return False
        return sum(len(request.beyond or ()) for request in requests) <= most_beyond(self.exact, self.positions)


def draft_evidence(
    asked: Asked, examined: ExaminedRun, draft: CanaryDraft, api: Api, wanted: ExpectedLengths
) -> DraftEvidence:
    """What the draft, as it was examined, does on the emitted tokens, and what the engine counted for them.

    `wanted`: the draft lengths of the engine's export. The draft is loaded only where the engine counted something.
    """
    drafting = [
        number for number, emitted in enumerate(asked.emitted) if len(emitted.tokens) > 1
    ]  # prefill emits the first
    counts = {number: counted for number in drafting if (counted := asked.emitted[number].counts) is not None}
    pooled = asked.counters.counts if isinstance(asked.counters, Increment) and not counts else None
    every = [*counts.values(), *([pooled] if pooled is not None else [])]
    nothing = DraftEvidence(
        source="answers" if counts else "counters" if pooled is not None else "nothing",
        requests=[],
        gamma=wanted.values[-1],
        exact=draft.exact,
        positions=0,
        near_ties=0,
        problem="" if every or not drafting else _no_counts(asked, api),
        exported=list(wanted.values) if wanted.exported else [],
    )
    if not every or not drafting:
        return nothing
    seen = lengths_seen(every, wanted)
    places = max(
        *(length or 0 for length in seen.by_answer), wanted.values[-1] * (_LONGEST if _uncounted(every) else 1)
    )
    try:
        choices = draft.on(_emissions(asked, examined, drafting), places)
    except UnderstudyError as error:
        return replace(
            nothing, problem=f"the engine's counts were not compared, for the draft cannot be computed here: {error}"
        )
    drafted = dict(zip(drafting, choices, strict=True))
    comparison = _Comparison(
        examined=examined, api=api, exact=draft.exact, counts=counts, pooled=pooled, drafted=drafted
    )
    seen, requests = _explained(comparison, seen, wanted)
    changes = "the engine changes its draft length (a schedule), so the examined draft's counts are not known"
    return replace(
        nothing,
        requests=requests,
        gamma=seen.of_all,
        positions=comparison.positions,
        near_ties=comparison.near_ties,
        problem=changes if not requests and not seen.wrong else "",
        lengths=seen.wrong,
        others=seen.by_answer.count(None),
    )


def _emissions(asked: Asked, examined: ExaminedRun, drafting: Sequence[int]) -> list[Emission]:
    """The answers of these numbers, ascending, with their prompts."""
    completions = ((number, examined.completions[number]) for number in drafting)
    return [
        Emission(completion.prompt, np.array(asked.emitted[number].tokens, dtype=np.int32), completion.domain)
        for number, completion in completions
    ]


def _explained(
    comparison: _Comparison, seen: LengthsSeen, wanted: ExpectedLengths
) -> tuple[LengthsSeen, list[RequestEvidence]]:
    """The evidence at the draft lengths that were seen. For an engine that counts no drafts: at the draft length, other than
    exported, at which its counts are those of the draft, if there is one."""
    requests = comparison.at(seen.by_answer)
    if comparison.is_explained(requests):
        return seen, requests
    if seen.wrong or not _uncounted([request.counted for request in requests]) or not wanted.exported:
        return seen, requests
    for length in range(1, _LONGEST * wanted.values[-1] + 1):
        same_length: list[int | None] = [length] * len(seen.by_answer)
        if length not in wanted.values and comparison.is_explained(at_length := comparison.at(same_length)):
            return LengthsSeen(same_length, not_as_exported(length, wanted)), at_length
    return seen, requests


def _uncounted(counts: Sequence[Counts]) -> bool:
    """Whether the engine counts no drafts."""
    return all(counted.drafts is None or counted.draft_tokens is None for counted in counts)


def _no_counts(asked: Asked, api: Api) -> str:
    """Why there are no counts, and what to switch on."""
    counters = asked.counters
    unread = "; ".join(counters.problems) if isinstance(counters, Increment) else counters
    otherwise = (
        f"its counters are inconclusive too ({unread or 'no draft was counted'})"
        if counters is not None
        else ("or, if it serves nothing else meanwhile, set watch.canary.idle")
    )
    return f"the engine gives no counts by request, or does not speculate; {_SWITCH[api]}; {otherwise}"


def _rule(api: Api, gamma: int, limit: int) -> DraftingRule:
    """How the engine drafts: llama.cpp no further than the request may go (docs/engines.md), vLLM and SGLang past the end."""
    return DraftingRule(gamma, limit if api == "llama.cpp" else None)


def _request(prompt: str, drafted: Drafted, rule: DraftingRule, counted: Counts) -> RequestEvidence:
    least, most = counts_of(drafted, rule)
    explanation = explain(drafted, rule, counted)
    return RequestEvidence(
        prompt=prompt,
        tokens=drafted.tokens,
        counted=counted,
        least=least,
        most=most,
        ties=[] if explanation is None else list(explanation.ties),
        beyond=None if explanation is None else list(explanation.beyond),
    )


def _pooled(drafted: Sequence[Drafted], rule: DraftingRule, counted: Counts) -> RequestEvidence:
    """The evidence of all requests together: whether the counters lie where the draft, with its near-ties either way, can
    bring them."""
    ranges = [counts_of(choices, rule, ties=True) for choices in drafted]
    least, most = (sum((pair[index] for pair in ranges[1:]), start=ranges[0][index]) for index in (0, 1))
    names = ("drafts", "draft_tokens", "accepted")
    is_inside = all(
        getattr(counted, name) is None or getattr(least, name) <= getattr(counted, name) <= getattr(most, name)
        for name in names
    )
    return RequestEvidence(
        prompt="",
        tokens=sum(choices.tokens for choices in drafted),
        counted=counted,
        least=least,
        most=most,
        ties=[],
        beyond=[] if is_inside else None,
    )

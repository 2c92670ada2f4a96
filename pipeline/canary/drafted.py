"""The examined draft on the tokens that an engine emitted, beside what the engine counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.acceptance.explained_counts import Drafted, Rounds, counts_of, explain
from pipeline.canary.arithmetic import most_beyond
from pipeline.canary.asking import Asked
from pipeline.canary.choices import Emission, ExaminedDraft
from pipeline.canary.examined import Examined
from pipeline.canary.lengths import Lengths, LengthsSeen, lengths_seen, not_as_exported
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


def draft_evidence(asked: Asked, examined: Examined, draft: ExaminedDraft, api: Api, wanted: Lengths) -> DraftEvidence:
    """What the draft, as it was examined, does on the emitted tokens, and what the engine counted for them.

    `wanted`: the draft lengths of the engine's export. The draft is loaded only where the engine counted something.
    """
    spoken = [number for number, one in enumerate(asked.emitted) if len(one.tokens) > 1]  # the prefill emits the first
    counts = {number: found for number in spoken if (found := asked.emitted[number].counts) is not None}
    pooled = asked.counters.counts if isinstance(asked.counters, Increment) and not counts else None
    every = [*counts.values(), *([pooled] if pooled is not None else [])]
    nothing = DraftEvidence(
        source="answers" if counts else "counters" if pooled is not None else "nothing",
        requests=[],
        gamma=wanted.values[-1],
        exact=draft.exact,
        positions=0,
        near_ties=0,
        problem="" if every or not spoken else _nothing(asked, api),
        exported=list(wanted.values) if wanted.exported else [],
    )
    if not every or not spoken:
        return nothing
    seen = lengths_seen(every, wanted)
    places = max(*(one or 0 for one in seen.by_answer), wanted.values[-1] * (_LONGEST if _uncounted(every) else 1))
    texts = [
        Emission(item.prompt, np.array(asked.emitted[number].tokens, dtype=np.int32), item.domain)
        for number, item in enumerate(examined.completions)
        if number in spoken
    ]
    try:
        inside = draft.on(texts, places)
    except UnderstudyError as error:
        return replace(
            nothing, problem=f"the engine's counts were not compared, for the draft cannot be computed here: {error}"
        )
    drafted = dict(zip(spoken, inside, strict=True))

    def at(lengths: Sequence[int | None]) -> list[RequestEvidence]:
        """The evidence where each answer had this draft length; answers without one are left out."""
        if pooled is not None:
            return [_pooled(inside, _rounds(api, one, examined.max_tokens), pooled) for one in lengths if one]
        pairs = zip(counts.items(), lengths, strict=True)
        return [
            _request(examined.completions[number].id, drafted[number], _rounds(api, one, examined.max_tokens), found)
            for (number, found), one in pairs
            if one
        ]

    requests, positions = at(seen.by_answer), sum(one.tokens - 1 for one in inside)
    if not _explained(requests, draft.exact, positions):
        seen, requests = _at_another(
            seen, wanted, requests, lambda one: at([one] * len(seen.by_answer)), draft.exact, positions
        )
    changes = "the engine changes its draft length (a schedule), so the examined draft's counts are not known"
    return replace(
        nothing,
        requests=requests,
        gamma=seen.one,
        positions=positions,
        near_ties=sum(int(one.is_tie[1:].sum()) for one in inside),
        problem=changes if not requests and not seen.wrong else "",
        lengths=seen.wrong,
        others=seen.by_answer.count(None),
    )


def _explained(requests: Sequence[RequestEvidence], exact: bool, positions: int) -> bool:
    """Whether these are the counts of the examined draft."""
    if not all(one.beyond is not None for one in requests):
        return False
    return sum(len(one.beyond or ()) for one in requests) <= most_beyond(exact, positions)


def _at_another(
    seen: LengthsSeen,
    wanted: Lengths,
    requests: list[RequestEvidence],
    at: Callable[[int], list[RequestEvidence]],
    exact: bool,
    positions: int,
) -> tuple[LengthsSeen, list[RequestEvidence]]:
    """Of an engine that counts no drafts: the draft length, other than exported, at which its counts are those of the draft."""
    if seen.wrong or not _uncounted([one.counted for one in requests]) or not wanted.exported:
        return seen, requests
    for length in range(1, _LONGEST * wanted.values[-1] + 1):
        if length not in wanted.values and _explained(found := at(length), exact, positions):
            return LengthsSeen([length] * len(seen.by_answer), not_as_exported(length, wanted)), found
    return seen, requests


def _uncounted(counts: Sequence[Counts]) -> bool:
    """Whether the engine counts no drafts."""
    return all(one.drafts is None or one.draft_tokens is None for one in counts)


def _nothing(asked: Asked, api: Api) -> str:
    """Why there are no counts, and what to switch on."""
    found = asked.counters
    unread = "; ".join(found.problems) if isinstance(found, Increment) else found
    otherwise = (
        f"its counters are inconclusive too ({unread or 'no draft was counted'})"
        if found is not None
        else ("or, if it serves nothing else meanwhile, set watch.canary.idle")
    )
    return f"the engine gives no counts by request, or does not speculate; {_SWITCH[api]}; {otherwise}"


def _rounds(api: Api, gamma: int, limit: int) -> Rounds:
    """llama.cpp drafts no further than the request may go (docs/engines.md); vLLM and SGLang draft past the end."""
    return Rounds(gamma, limit if api == "llama.cpp" else None)


def _request(prompt: str, drafted: Drafted, rounds: Rounds, counted: Counts) -> RequestEvidence:
    least, most = counts_of(drafted, rounds)
    found = explain(drafted, rounds, counted)
    return RequestEvidence(
        prompt=prompt,
        tokens=drafted.tokens,
        counted=counted,
        least=least,
        most=most,
        ties=[] if found is None else list(found.ties),
        beyond=None if found is None else list(found.beyond),
    )


def _pooled(drafted: Sequence[Drafted], rounds: Rounds, counted: Counts) -> RequestEvidence:
    """Of all requests together: whether the counters lie where the draft, with its near-ties either way, can bring them."""
    ranges = [counts_of(one, rounds, ties=True) for one in drafted]
    least, most = (sum((pair[index] for pair in ranges[1:]), start=ranges[0][index]) for index in (0, 1))
    names = ("drafts", "draft_tokens", "accepted")
    inside = all(
        getattr(counted, name) is None or getattr(least, name) <= getattr(counted, name) <= getattr(most, name)
        for name in names
    )
    return RequestEvidence(
        prompt="",
        tokens=sum(one.tokens for one in drafted),
        counted=counted,
        least=least,
        most=most,
        ties=[],
        beyond=[] if inside else None,
    )

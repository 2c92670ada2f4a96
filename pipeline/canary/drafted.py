"""The examined draft on the tokens that an engine emitted, beside what the engine counted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.acceptance.explained_counts import Drafted, Rounds, counts_of, explain
from pipeline.canary.arithmetic import is_exact, most_beyond, near_ties
from pipeline.canary.asking import Asked
from pipeline.canary.examined import Examined
from pipeline.canary.lengths import Lengths, LengthsSeen, lengths_seen, not_as_exported
from pipeline.canary.schema import DraftEvidence, RequestEvidence
from pipeline.config.server import Api
from pipeline.engines.counts import Counts
from pipeline.examination.argmax import argmax_on
from pipeline.registry.named import Draft

_LONGEST = 3  # times the exported draft length: as far as another one is looked for
# What an operator switches on to get counts by request (docs/logs.md).
_SWITCH = {
    "vllm": "start vLLM with --per-request-spec-decode-metrics summary",
    "sglang": "SGLang gives them with every answer while it speculates: start it with a draft",
    "llama.cpp": "llama-server gives them with every answer while it speculates: start it with a draft",
}


@dataclass(frozen=True)
class _Text:
    """A prompt and what was emitted, as `examine.TokenizedCompletion`."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    domain: str


def draft_evidence(asked: Asked, examined: Examined, model: Any, api: Api, wanted: Lengths) -> DraftEvidence:
    """What `model`, the draft as it was examined, does on the emitted tokens, and what the engine counted for them.

    `wanted`: the draft lengths of the engine's export. Raises BrokenDraft.
    """
    config, draft = examined.draft.config, examined.draft
    exact = is_exact(config.pair.target.dtype, config.pair.draft.dtype, draft.variant)
    pairs = zip(examined.completions, asked.emitted, strict=True)
    texts = [_Text(item.prompt, np.array(one.tokens, dtype=np.int32), item.domain) for item, one in pairs]
    drafted = argmax_on(model, texts, draft.pair.vocabulary, config.evaluate.batch_tokens)
    spoken = [number for number, one in enumerate(asked.emitted) if len(one.tokens) > 1]  # the prefill emits the first
    counts = {number: found for number in spoken if (found := asked.emitted[number].counts) is not None}
    pooled = asked.counters.counts if asked.counters is not None and not counts else None
    seen = lengths_seen([*counts.values(), *([pooled] if pooled is not None else [])], wanted)

    def at(lengths: Sequence[int | None]) -> list[RequestEvidence]:
        """The evidence where each answer had this draft length; answers without one are left out."""
        if pooled is not None:
            inside = [drafted[number] for number in spoken]
            return [_pooled(inside, _rounds(api, one, examined.max_tokens), pooled, exact) for one in lengths if one]
        pairs = zip(counts.items(), lengths, strict=True)
        return [
            _request(
                examined.completions[number].id, drafted[number], _rounds(api, one, examined.max_tokens), found, exact
            )
            for (number, found), one in pairs
            if one
        ]

    requests, inside = at(seen.by_answer), [drafted[number] for number in spoken]
    positions = sum(len(one.margin_N) - 1 for one in inside)
    if (counts or pooled is not None) and not _explained(requests, exact, positions):
        seen, requests = _at_another(
            seen, wanted, requests, lambda one: at([one] * len(seen.by_answer)), exact, positions
        )
    problem = ""
    if seen.by_answer and not requests and not seen.wrong:
        problem = "the engine changes its draft length (a schedule), so the examined draft's counts are not known"
    elif not seen.by_answer and spoken:
        problem = _nothing(asked, api)
    return DraftEvidence(
        source="answers" if counts else "counters" if pooled is not None else "nothing",
        requests=requests,
        gamma=seen.one if seen.by_answer else wanted.values[-1],
        exact=exact,
        positions=positions,
        near_ties=sum(int(near_ties(one, exact)[1:].sum()) for one in inside),
        problem=problem,
        exported=list(wanted.values) if wanted.exported else [],
        lengths=seen.wrong,
        others=seen.by_answer.count(None),
    )


def not_compared(draft: Draft) -> DraftEvidence:
    """Of a draft whose tokens depend on where each round began."""
    return DraftEvidence(
        source="nothing",
        requests=[],
        gamma=None,
        exact=False,
        positions=0,
        near_ties=0,
        problem=f"the draft is of kind {draft.kind.name}: what it drafts depends on where each round began, which an answer does "
        "not say; the watch compares the engine's counters with what was predicted",
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
    uncounted = all(one.counted.drafts is None or one.counted.draft_tokens is None for one in requests)
    if seen.wrong or not uncounted or not wanted.exported:
        return seen, requests
    for length in range(1, _LONGEST * wanted.values[-1] + 1):
        if length not in wanted.values and _explained(found := at(length), exact, positions):
            return LengthsSeen([length] * len(seen.by_answer), not_as_exported(length, wanted)), found
    return seen, requests


def _nothing(asked: Asked, api: Api) -> str:
    """Why there are no counts, and what to switch on."""
    unread = "; ".join(asked.counters.problems) if asked.counters is not None else ""
    otherwise = (
        f"its counters say nothing either ({unread or 'no draft was counted'})"
        if asked.counters
        else ("or, if it serves nothing else meanwhile, set watch.canary.idle")
    )
    return f"the engine gives no counts by request, or does not speculate; {_SWITCH[api]}; {otherwise}"


def _rounds(api: Api, gamma: int, limit: int) -> Rounds:
    """llama.cpp drafts no further than the request may go (docs/engines.md); vLLM and SGLang draft past the end."""
    return Rounds(gamma, limit if api == "llama.cpp" else None)


def _request(prompt: str, drafted: Drafted, rounds: Rounds, counted: Counts, exact: bool) -> RequestEvidence:
    least, most = counts_of(drafted, rounds)
    found = explain(drafted, rounds, counted, near_ties(drafted, exact))
    return RequestEvidence(
        prompt=prompt,
        tokens=len(drafted.is_argmax_N),
        counted=counted,
        least=least,
        most=most,
        ties=[] if found is None else list(found.ties),
        beyond=None if found is None else list(found.beyond),
    )


def _pooled(drafted: Sequence[Drafted], rounds: Rounds, counted: Counts, exact: bool) -> RequestEvidence:
    """Of all requests together: whether the counters lie where the draft, with its near-ties either way, can bring them."""
    ranges = [counts_of(one, rounds, near_ties(one, exact)) for one in drafted]
    least, most = (sum((pair[index] for pair in ranges[1:]), start=ranges[0][index]) for index in (0, 1))
    names = ("drafts", "draft_tokens", "accepted")
    inside = all(
        getattr(counted, name) is None or getattr(least, name) <= getattr(counted, name) <= getattr(most, name)
        for name in names
    )
    return RequestEvidence(
        prompt="",
        tokens=sum(len(one.is_argmax_N) for one in drafted),
        counted=counted,
        least=least,
        most=most,
        ties=[],
        beyond=[] if inside else None,
    )

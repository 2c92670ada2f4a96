"""Streaming a decode: its rounds, its times, stopping early; and imposed acceptance."""

import math
from collections import defaultdict
from typing import Any

import pytest

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UsageError
from pipeline.speculation.batch import Request, Round, Seconds
from pipeline.speculation.decoder import Decoder, Decoding
from pipeline.speculation.draft_length import Confident
from pipeline.speculation.rules import ImposedAcceptance
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import decoder_of, ragged_requests, table_model

VOCABULARY = 32
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3], [5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [6, 2, 6, 4]]
LIMITS = [11, 3, 14, 6, 1]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_rounds_add_up_to_completions(target: Any, draft: Any, sampling: Sampling) -> None:
    """The streamed rounds add up to the completions; at temperature 0 each token is the argmax of the streamed logits;
    drafted and accepted counts agree."""
    seen: dict[int, list[int]] = defaultdict(list)
    drafted: dict[int, list[int]] = defaultdict(list)
    accepted: dict[int, list[int]] = defaultdict(list)
    lengths = dict.fromkeys(range(5), 0)

    def observe(round_: Round) -> None:
        for row, number in enumerate(round_.numbers):
            if len(seen[number]) < LIMITS[number]:
                drafted[number].append(round_.drafted[row])
                accepted[number].append(round_.accepted[row])
            for index, token in enumerate(round_.emitted[row]):
                assert not sampling.greedy or int(round_.logits_BTV[row, index].argmax()) == token
                lengths[number] += 1
            seen[number] += round_.emitted[row]

    requests = [Request(p, n, n, lookahead=2) for p, n in zip(PROMPTS, LIMITS, strict=True)]
    decoder = Decoder(target, PlainDraft(draft, VOCABULARY), sampling=sampling, vocabulary=VOCABULARY, gamma=3)
    completions = decoder.decode(requests, observe)

    assert [completion.tokens for completion in completions] == [seen[number] for number in range(5)]
    assert [completion.drafted for completion in completions] == [drafted[number] for number in range(5)]
    assert [completion.accepted for completion in completions] == [accepted[number] for number in range(5)]


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_stopping_early_leaves_the_beginning(target: Any, draft: Any, rounds: int) -> None:
    """Stopping early gives a prefix of each text without a length; continuing gives the whole text."""
    requests = ragged_requests(5)
    decoder = Decoder(target, PlainDraft(draft, VOCABULARY), sampling=Sampling(), vocabulary=VOCABULARY, gamma=2)
    whole = decoder.decode(requests)
    decoding = Decoding(decoder, requests)
    for count, _ in enumerate(decoding, start=1):
        if count == rounds:
            break
    for request, full, part in zip(requests, whole, decoding.completions, strict=True):
        assert rounds <= len(part.tokens) or len(part.tokens) == request.limit
        assert full.tokens[: len(part.tokens)] == part.tokens
        assert part.length == (request.limit if len(part.tokens) == request.limit else 0)
        assert not part.stopped
    for _ in decoding:
        pass
    assert whole == decoding.completions


def test_seconds_are_a_completions_own(target: Any, draft: Any) -> None:
    """No phase is negative, phases sum to the total, and a finished completion accumulates no more time."""
    requests = [Request([1, 2], 1, 0), Request([3], 40, 0), Request([4, 5], 40, 0)]
    decoding = Decoding(
        Decoder(target, PlainDraft(draft, VOCABULARY), sampling=GREEDY, vocabulary=VOCABULARY, gamma=2), requests
    )
    totals = []
    for _ in decoding:
        totals.append(decoding.completions[0].seconds.total)
        for completion in decoding.completions:
            assert min(vars(completion.seconds).values()) >= 0

    assert 1 == len(set(totals))
    last = decoding.completions[1].seconds
    assert last.total > totals[0] > 0
    assert last.prefill > 0 < last.draft
    assert Seconds(1, 2, 3, 4).total == 10


def test_decoding_in_waves_leaves_no_trace(target: Any, draft: Any) -> None:
    """Consecutive decodes of one decoder are independent, and each row depends on its seed."""
    decoder = decoder_of(target, draft, Confident(3), Sampling())
    requests = ragged_requests(5)
    first = decoder.decode(requests)
    decoder.decode(ragged_requests(7)[2:])

    assert first == decoder.decode(requests)


@pytest.mark.parametrize(
    ("sampling", "count"),
    [(GREEDY, 3), (Sampling(), 2)],
    ids=str,
)
def test_imposed_acceptance_needs_sampling_and_a_figure_a_token(
    target: Any, draft: Any, sampling: Sampling, count: int
) -> None:
    """At temperature 0, or with fewer rates than draft positions, it is a usage error."""
    imposed = ImposedAcceptance([0.5] * count)
    with pytest.raises(UsageError, match="imposed acceptance needs"):
        decoder_of(target, draft, 3, sampling, verification=imposed)


def test_imposed_acceptance_by_position() -> None:
    """Of all rounds that drafted so far, the accepted share is the imposed rate (six standard deviations, each of three
    positions: false alarm below 1e-8), for unrelated target and draft."""
    target, draft = table_model(8, 1, scale=4.0), table_model(8, 2, scale=4.0)
    imposed = [0.8, 0.9, 0.4]
    requests = [Request([1], 40, seed) for seed in range(200)]
    completions = decoder_of(
        target, draft, 3, Sampling(), vocabulary=8, verification=ImposedAcceptance(imposed)
    ).decode(requests)
    for completion in completions:
        assert all(stood <= count for count, stood in zip(completion.drafted, completion.accepted, strict=True))
    for position in range(3):
        reached = [
            accepted > position
            for completion in completions
            for drafted, accepted in zip(completion.drafted, completion.accepted, strict=True)
            if drafted > position and accepted >= position
        ]
        share, chance = sum(reached) / len(reached), imposed[position]
        assert abs(share - chance) < 6 * math.sqrt(chance * (1 - chance) / len(reached))

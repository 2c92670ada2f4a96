"""Drafts that copy from the text, lookup and suffix matching: examined and decoded as a walk round by round says."""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import pytest
import torch

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.examination.cross_check import decoded_starts
from pipeline.examination.examiner import Examiner
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import LengthSchedule
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.lookup_walk import lookup_block, walk_blocks

MOST = 7
Draft = PromptLookup | SuffixMatching
Search = Callable[[Sequence[int]], Sequence[int]]
Text = tuple[list[int], list[int], list[int]]


@cache
def _block_after(settings: SuffixSettings, text: tuple[int, ...]) -> tuple[int, ...]:
    """The block of suffix matching of any length, by comparing slices of the text: shares no code with the draft."""
    for length in range(min(settings.longest_match, len(text)), 0, -1):
        ends = [end for end in range(length, len(text)) if text[end - length : end] == text[-length:]]
        if ends:
            return _following(settings, text, ends, int(settings.max_spec_factor * length))
    return ()


def _following(settings: SuffixSettings, text: tuple[int, ...], ends: list[int], most: int) -> tuple[int, ...]:
    block: tuple[int, ...] = ()
    while len(block) < most:
        size = len(block) + 1
        longer = [text[end : end + size] for end in ends]
        longer = [one for one in longer if len(one) == size and one[:-1] == block]
        if not longer:
            break
        best = max(range(len(longer)), key=lambda number: (longer.count(longer[number]), number))
        if longer.count(longer[best]) / len(ends) < settings.min_token_prob:
            break
        block = longer[best]
    return block


def _suffix(**settings: float) -> tuple[Draft, Search]:
    own = SuffixSettings(**settings)
    return SuffixMatching(own), lambda text: _block_after(own, tuple(text))


def _lookup(ngram: int) -> tuple[Draft, Search]:
    return PromptLookup(ngram), partial(lookup_block, ngram=ngram)


DRAFTS = {  # with a fresh search for the block
    "lookup 1": _lookup(1),
    "lookup 2": _lookup(2),
    "lookup 4": _lookup(4),
    "suffix": _suffix(),
    "suffix of one token": _suffix(longest_match=1, max_spec_factor=5),
    "suffix of high probability": _suffix(longest_match=3, max_spec_factor=2.5, min_token_prob=0.4),
    "suffix of any probability": _suffix(max_spec_factor=4, min_token_prob=0),
}
ONE_OF_EACH = ("lookup 2", "suffix of high probability")


def _counts(texts: Sequence[Text], draft: Draft, convention: Convention, gamma: int = 3) -> list[PromptCounts]:
    """Of prompts, what was said, and what the target would say after it."""
    settings = EvaluateConfig(convention=convention.name, max_gamma=MOST, gamma=gamma)
    items = [stored_completion(prompt, [*said, *past], length=len(said)) for prompt, said, past in texts]
    (found,) = Examiner(Sampling(), settings).counts(draft, items)
    return found


def _random_text(generator: random.Random, *sizes: int) -> Text:
    prompt, said, past = ([generator.randrange(3) for _ in range(size)] for size in sizes)
    return prompt, said, past


@pytest.mark.parametrize(
    ("name", "convention"),
    [
        *((name, "vllm") for name in DRAFTS),
        *((name, convention) for name in ONE_OF_EACH for convention in CONVENTIONS if convention != "vllm"),
    ],
)
def test_counts_equal_a_fresh_search_in_every_round(name: str, convention: str) -> None:
    """Random texts over few tokens, so that blocks repeat: all counts agree for every gamma, exactly, so for any seed. Blocks end
    where the text does, and of a clipped convention before the last token."""
    (draft, search), generator, lengths, counted_as = (
        DRAFTS[name],
        random.Random(11),
        set[int](),
        CONVENTIONS[convention],
    )
    sizes = [(generator.randrange(1, 40), generator.randrange(1, 25), MOST - 1) for _ in range(20)]
    texts = [_random_text(generator, *size) for size in sizes]
    for (prompt, said, past), found in zip(texts, _counts(texts, draft, counted_as), strict=True):
        walks = [walk_blocks(prompt, said, gamma, search, counted_as, past) for gamma in range(1, MOST + 1)]
        text, count = [*prompt, *said, *past], len(said) + len(past)
        examined = draft.examine(PaddedBatch([stored_completion(prompt, [*said, *past])]), GREEDY, MOST)
        blocks = [search(text[:end])[:MOST] for end in range(len(prompt), len(text))]
        lengths |= set(map(len, blocks))

        assert [len(one.rounds) for one in walks] == found.rounds
        assert [len(one.rounds) + counted_as.prefill_call for one in walks] == found.calls
        assert [one.accepted for one in walks] == found.accepted_drafts
        assert [*walks[-1].per_position] == found.per_position
        assert [0.0] * MOST == found.rounds_variance
        assert (walks[2].accepted, walks[2].accepted + walks[2].rejected) == (found.accepted, found.examined)
        assert examined.drafted is not None
        assert list(map(len, blocks)) == examined.drafted[0].tolist()
        a_BTP = np.zeros((1, count, MOST))
        for place in range(MOST):  # token t at place j of the round that starts at t - j
            a_BTP[0, place:, place] = examined.values[0][: count - place, place]
        drafted_BT = np.asarray(examined.drafted[0])[None]
        rounds = expected_rounds(a_BTP, np.array([len(said)]), MOST, counted_as, drafted_BT)
        assert walks[-1].proposed == rounds.proposed_B[0]
    assert len(lengths) >= 5  # how many tokens a round drafts depends on its start


@pytest.mark.parametrize(
    ("name", "sampling", "gamma"),
    [
        *((name, GREEDY, 5) for name in DRAFTS),
        *((name, *other) for name in ONE_OF_EACH for other in ((GREEDY, 1), (Sampling(temperature=0.8, top_k=5), 5))),
    ],
    ids=str,
)
def test_a_decode_does_what_the_examination_counts(name: str, sampling: Sampling, gamma: int) -> None:
    """Given the text that a real decode emitted, the rounds are those of the examination and of a fresh search, row by row and
    round by round: starts, drafted and accepted tokens. At temperature 0 the text is that of the target alone. Exact for any
    text, so no chance of a false alarm."""
    target, limit, convention, (draft, search) = tiny_llama(seed=5), 40, CONVENTIONS["transformers"], DRAFTS[name]
    requests = [Request([number, 3, 5, number, 3], limit, number) for number in range(1, 9)]
    decoded = Decoder(target, draft, sampling=sampling, vocabulary=32, gamma=gamma).decode(requests)

    texts = [(request.prompt, one.tokens, list[int]()) for request, one in zip(requests, decoded, strict=True)]
    examined = _counts(texts, draft, convention, gamma)
    for request, one, counts in zip(requests, decoded, examined, strict=True):
        assert counts.rounds[gamma - 1] == one.rounds
        assert counts.accepted_drafts[gamma - 1] == sum(one.accepted)
        assert _examined_rounds(draft, request, one, gamma) == (decoded_starts(one), one.drafted, one.accepted)
        expected = walk_blocks(request.prompt, one.tokens, gamma, search, convention)
        assert [(start, accepted) for start, accepted, _ in expected.rounds] == [
            *zip(decoded_starts(one), one.accepted, strict=True)
        ]
        assert expected.proposed == sum(one.drafted)
    if sampling.greedy:
        plain = Decoder(target, None, sampling=GREEDY, vocabulary=32).decode(requests)
        assert [one.tokens for one in plain] == [one.tokens for one in decoded]
        assert sum(sum(one.accepted) for one in decoded) > 60  # it loops, so that there is something to copy


def _examined_rounds(
    draft: Draft, request: Request, one: Completion, gamma: int
) -> tuple[list[int], list[int], list[int]]:
    """Start, drafted and accepted tokens of every round, by what `examine` says of each start, blocks clipped at the end."""
    batch = PaddedBatch([stored_completion(request.prompt, one.tokens)])
    found = draft.examine(batch, GREEDY, MOST)
    assert found.drafted is not None
    starts, drafted, accepted, start = list[int](), list[int](), list[int](), 0
    while start < len(one.tokens):
        most = min(int(found.drafted[0][start]), gamma, len(one.tokens) - start - 1)
        stood = int(np.cumprod(found.values[0][start, :most]).sum())
        starts, drafted, accepted = [*starts, start], [*drafted, most], [*accepted, stood]
        start += stood + 1
    return starts, drafted, accepted


BOTH = pytest.mark.parametrize("draft", [PromptLookup(3), SuffixMatching(SuffixSettings())], ids=["lookup", "suffix"])


@BOTH
def test_rows_do_not_depend_on_the_batch(draft: Draft) -> None:
    """Rows of other lengths, rows that end, and rounds without drafting change nothing."""
    target, rule = tiny_llama(seed=5), LengthSchedule(((1, 3, 4), (4, 8, 0)))
    requests = [Request([number, 3] * number, 5 + 6 * number, number) for number in range(1, 7)]
    together = Decoder(target, draft, sampling=GREEDY, vocabulary=32, gamma=rule).decode(requests)
    alone = [Decoder(target, None, sampling=GREEDY, vocabulary=32).decode([one])[0].tokens for one in requests]

    assert [0, 0, 0] == [sum(one.drafted) for one in together[:3]]  # nothing is drafted while all six run
    assert sum(together[-1].drafted) > 0
    assert alone == [one.tokens for one in together]


@BOTH
def test_what_is_emitted_has_the_law_of_the_target(draft: Draft) -> None:
    """The token at a certain proposal, at temperature 1: frequencies as the target's probabilities. 4,000 draws; chance of a
    false alarm 3e-7 (binomial: each of 32 frequencies within 6.5 standard errors)."""
    target, count = tiny_llama(seed=3), 4000
    prompt = [7, 9, 4, 7, 9]  # 4 is proposed
    requests = [Request(prompt, 2, seed) for seed in range(count)]
    decoded = Decoder(target, draft, sampling=Sampling(), vocabulary=32, gamma=1).decode(requests)
    first = np.bincount([one.tokens[0] for one in decoded], minlength=32) / count
    with torch.inference_mode():
        p = target(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy()

    assert (np.abs(first - p) < 6.5 * np.sqrt(p * (1 - p) / count) + 1e-9).all()
    assert {4} == {one.tokens[0] for one in decoded if one.accepted[0] == 1}

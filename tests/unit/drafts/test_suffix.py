"""Suffix matching: examined and decoded as a walk round by round says."""

import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.rounds import CONVENTIONS, Convention, expected_rounds
from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.loading import DraftOrigin
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.examination.cross_check import decoded_starts
from pipeline.examination.examiner import Examiner
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import stored_completion, tiny_llama
from tests.lookup_walk import walk_blocks

MOST = 7
Text = tuple[list[int], list[int], list[int]]
SETTINGS = (
    SuffixSettings(),
    SuffixSettings(longest_match=1, max_spec_factor=5),
    SuffixSettings(longest_match=3, max_spec_factor=2.5, min_token_prob=0.4),
    SuffixSettings(max_spec_factor=4, min_token_prob=0),
)
EVERY = pytest.mark.parametrize("settings", SETTINGS, ids=str)


def _search(settings: SuffixSettings) -> Callable[[Sequence[int]], Sequence[int]]:
    return lambda text: _block_after(settings, tuple(text))


@cache
def _block_after(settings: SuffixSettings, text: tuple[int, ...]) -> tuple[int, ...]:
    """The block of any length, by comparing slices of the text: shares no code with the draft."""
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


def _counts(
    texts: Sequence[Text], settings: SuffixSettings, convention: Convention, gamma: int = 3
) -> list[PromptCounts]:
    """Of prompts, what was said, and what the target would say after it."""
    examination = EvaluateConfig(convention=convention.name, max_gamma=MOST, gamma=gamma)
    items = [stored_completion(prompt, [*said, *past], length=len(said)) for prompt, said, past in texts]
    (found,) = Examiner(Sampling(), examination).counts(SuffixMatching(settings), items)
    return found


def _block(text: list[int], most: int = MOST, **settings: float) -> list[int]:
    """What is proposed after a text: a completion that is any token, and then another."""
    draft, block = SuffixMatching(SuffixSettings(**settings)), list[int]()
    for _ in range(most):
        for token in range(10):
            item = stored_completion(text, [*block, token])
            if draft.examine(PaddedBatch([item]), GREEDY, most).values[0][0, len(block)]:
                block.append(token)
                break
    return block


def _random_text(generator: random.Random, *sizes: int) -> Text:
    prompt, said, past = ([generator.randrange(3) for _ in range(size)] for size in sizes)
    return prompt, said, past


@EVERY
@pytest.mark.parametrize("convention", CONVENTIONS.values(), ids=lambda convention: convention.name)
def test_counts_equal_a_fresh_search_in_every_round(convention: Convention, settings: SuffixSettings) -> None:
    """Random texts over few tokens, so that suffixes repeat: all counts agree for every gamma, exactly, so for any seed."""
    generator, drafted, search = random.Random(11), set[int](), _search(settings)
    sizes = [(generator.randrange(1, 40), generator.randrange(1, 25), MOST - 1) for _ in range(20)]
    texts = [_random_text(generator, *size) for size in sizes]
    for (prompt, said, past), found in zip(texts, _counts(texts, settings, convention), strict=True):
        walks = [walk_blocks(prompt, said, gamma, search, convention, past) for gamma in range(1, MOST + 1)]
        text = [*prompt, *said, *past]
        item = stored_completion(prompt, [*said, *past])
        examined = SuffixMatching(settings).examine(PaddedBatch([item]), GREEDY, MOST)
        blocks = [search(text[:end])[:MOST] for end in range(len(prompt), len(text))]
        drafted |= set(map(len, blocks))

        assert [len(one.rounds) for one in walks] == found.rounds
        assert [one.accepted for one in walks] == found.accepted_drafts
        assert [*walks[-1].per_position] == found.per_position
        assert [0.0] * MOST == found.rounds_variance
        assert (walks[2].accepted, walks[2].accepted + walks[2].rejected) == (found.accepted, found.examined)
        assert examined.drafted is not None
        assert list(map(len, blocks)) == examined.drafted[0].tolist()
    assert len(drafted) >= 5  # how many tokens a round drafts depends on its start


@EVERY
@pytest.mark.parametrize(
    ("sampling", "gamma"), [(GREEDY, 1), (GREEDY, 5), (Sampling(temperature=0.8, top_k=5), 5)], ids=str
)
def test_a_decode_does_what_the_examination_counts(sampling: Sampling, gamma: int, settings: SuffixSettings) -> None:
    """Given the text that a real decode emitted, the rounds are those of the examination and of a fresh search, row by row and
    round by round: starts, drafted and accepted tokens. At temperature 0 the text is that of the target alone. Exact for any
    text, so no chance of a false alarm."""
    target, limit, convention = tiny_llama(seed=5), 40, CONVENTIONS["transformers"]
    requests = [Request([number, 3, 5, number, 3], limit, number) for number in range(1, 9)]
    decoder = Decoder(target, SuffixMatching(settings), sampling=sampling, vocabulary=32, gamma=gamma)
    decoded = decoder.decode(requests)

    texts = [(request.prompt, one.tokens, list[int]()) for request, one in zip(requests, decoded, strict=True)]
    examined = _counts(texts, settings, convention, gamma)
    for request, one, counts in zip(requests, decoded, examined, strict=True):
        assert counts.rounds[gamma - 1] == one.rounds
        assert counts.accepted_drafts[gamma - 1] == sum(one.accepted)
        assert _examined_rounds(settings, request, one, gamma) == (decoded_starts(one), one.drafted, one.accepted)
        expected = walk_blocks(request.prompt, one.tokens, gamma, _search(settings), convention)
        assert [(start, accepted) for start, accepted, _ in expected.rounds] == [
            *zip(decoded_starts(one), one.accepted, strict=True)
        ]
        assert expected.proposed == sum(one.drafted)
    if sampling.greedy:
        plain = Decoder(target, None, sampling=GREEDY, vocabulary=32).decode(requests)
        assert [one.tokens for one in plain] == [one.tokens for one in decoded]
        assert sum(sum(one.accepted) for one in decoded) > 60  # it loops, so that there is something to copy


def _examined_rounds(
    settings: SuffixSettings, request: Request, one: Completion, gamma: int
) -> tuple[list[int], list[int], list[int]]:
    """Start, drafted and accepted tokens of every round, by what `examine` says of each start, blocks clipped at the end."""
    batch = PaddedBatch([stored_completion(request.prompt, one.tokens)])
    found = SuffixMatching(settings).examine(batch, GREEDY, MOST)
    assert found.drafted is not None
    starts, drafted, accepted, start = list[int](), list[int](), list[int](), 0
    while start < len(one.tokens):
        most = min(int(found.drafted[0][start]), gamma, len(one.tokens) - start - 1)
        stood = int(np.cumprod(found.values[0][start, :most]).sum())
        starts, drafted, accepted = [*starts, start], [*drafted, most], [*accepted, stood]
        start += stood + 1
    return starts, drafted, accepted


def test_the_longest_match_decides() -> None:
    """The suffix 1 2 is followed by 7 once; the suffix 2 alone by 8 twice."""
    text = [1, 2, 7, 3, 2, 8, 4, 2, 8, 1, 2]

    assert [7, 3] == _block(text)
    assert [8] == _block(text, longest_match=1)


def test_the_most_frequent_continuation_is_chosen_and_of_equal_ones_the_latest() -> None:
    """Token by token among the matches that agree so far; where the latest match differs it does not decide."""
    assert [5] == _block([1, 5, 1, 5, 1, 6, 1])
    assert [6] == _block([1, 5, 1, 6, 1])
    assert [5, 3] == _block([1, 5, 2, 1, 5, 3, 1, 6, 1], max_spec_factor=2)


def test_a_block_ends_where_its_probability_is_low() -> None:
    """Of three matches two agree with 5, and one with 5 3."""
    text = [1, 5, 2, 1, 5, 3, 1, 6, 1]

    assert [5, 3, 1] == _block(text, max_spec_factor=3, min_token_prob=1 / 3)
    assert [5] == _block(text, max_spec_factor=3, min_token_prob=0.34)
    assert [] == _block(text, max_spec_factor=3, min_token_prob=0.67)


def test_a_block_is_as_long_as_its_match_allows() -> None:
    """`max_spec_factor` tokens for each matched token, but not past the end of the text."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]

    assert [4, 5, 6] == _block(text)
    assert [4] == _block(text, max_spec_factor=0.5)
    assert [4, 5, 6, 7, 8, 9] == _block(text, max_spec_factor=2)
    assert [4, 5] == _block(text, most=2)
    assert [] == _block([1, 2, 3, 4])


def test_proposed_tokens_are_counted() -> None:
    """`proposed` of expected_rounds, of blocks that end early: what a walk drafts."""
    generator, settings, convention = random.Random(5), SETTINGS[2], CONVENTIONS["vllm"]
    for _ in range(30):
        prompt, said, past = ([generator.randrange(3) for _ in range(count)] for count in (9, 15, MOST - 1))
        examined = SuffixMatching(settings).examine(
            PaddedBatch([stored_completion(prompt, [*said, *past])]), GREEDY, MOST
        )
        assert examined.drafted is not None
        a_BTP = np.zeros((1, 21, MOST))
        for place in range(MOST):  # token t at place j of the round that starts at t - j
            a_BTP[0, place:, place] = examined.values[0][: 21 - place, place]
        found = expected_rounds(a_BTP, np.array([15]), MOST, convention, np.asarray(examined.drafted[0])[None])
        assert walk_blocks(prompt, said, MOST, _search(settings), convention, past).proposed == found.proposed_B[0]


def test_it_is_loaded_by_its_kind() -> None:
    """With vLLM's settings, and without files."""
    source = DraftOrigin(kind="suffix-matching", files=None, dtype="float32", trust_remote_code=False, lookup_ngram=3)
    draft = source.load(torch.device("cpu"))

    assert isinstance(draft, SuffixMatching)
    assert SuffixSettings() == draft.settings

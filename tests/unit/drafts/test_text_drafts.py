"""Drafts that copy from the text, in a decode: lookup and suffix matching."""

import numpy as np
import pytest
import torch

from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import LengthSchedule
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import tiny_llama

BOTH = pytest.mark.parametrize("draft", [PromptLookup(3), SuffixMatching(SuffixSettings())], ids=["lookup", "suffix"])


@BOTH
def test_rows_do_not_depend_on_the_batch(draft: PromptLookup | SuffixMatching) -> None:
    """Rows of other lengths, rows that end, and rounds without drafting change nothing."""
    target, rule = tiny_llama(seed=5), LengthSchedule(((1, 3, 4), (4, 8, 0)))
    requests = [Request([number, 3] * number, 5 + 6 * number, number) for number in range(1, 7)]
    together = Decoder(target, draft, sampling=GREEDY, vocabulary=32, gamma=rule).decode(requests)
    alone = [Decoder(target, None, sampling=GREEDY, vocabulary=32).decode([one])[0].tokens for one in requests]

    assert [0, 0, 0] == [sum(one.drafted) for one in together[:3]]  # nothing is drafted while all six run
    assert sum(together[-1].drafted) > 0
    assert alone == [one.tokens for one in together]


@BOTH
def test_what_is_emitted_has_the_law_of_the_target(draft: PromptLookup | SuffixMatching) -> None:
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

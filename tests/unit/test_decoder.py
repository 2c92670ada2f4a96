"""The decoding loop: speculative output is plain output, row by row, and its law is the target's."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from pipeline.errors import UnderstudyError, UsageError
from pipeline.speculation.decoder import Completion, Decoder, Request
from pipeline.speculation.sampling import GREEDY, Sampling, log_probabilities
from tests.fakes import TableModel, greedy_text, table_model, tiny_llama

VOCABULARY = 32
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3], [5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [6, 2, 6, 4]]
LIMITS = [11, 3, 14, 6, 1]


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(11, layers=1)


@pytest.fixture(scope="module")
def draft(target: Any) -> Any:
    """The target, its head shaken: it is wrong often enough, and right often enough."""
    model = tiny_llama(11, layers=1)
    with torch.no_grad():
        noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(0))
        model.lm_head.weight += 0.08 * noise
    return model


def _decode(
    target: Any, draft: Any, gamma: int, requests: list[Request], sampling: Sampling = GREEDY, **options: Any
) -> list[Completion]:
    options = {"vocabulary": VOCABULARY} | options
    return Decoder(target, draft, sampling=sampling, gamma=gamma, **options).decode(requests)


@pytest.mark.parametrize("gamma", range(6))
@pytest.mark.parametrize("batch", [1, 5])
def test_greedy_speculation_equals_greedy_decoding(target: Any, draft: Any, gamma: int, batch: int) -> None:
    """In fp64, with a different draft and for every gamma, the tokens are those of full passes of the target alone."""
    requests = [Request(prompt, limit, 0) for prompt, limit in zip(PROMPTS[:batch], LIMITS, strict=False)]
    completions = _decode(target, draft if gamma else None, gamma, requests)

    assert [greedy_text(target, request.prompt, request.limit, VOCABULARY) for request in requests] == [
        completion.tokens for completion in completions
    ]
    assert [request.limit for request in requests] == [completion.length for completion in completions]


def test_the_draft_above_is_neither_perfect_nor_useless(target: Any, draft: Any) -> None:
    """Otherwise the tests here would not reach both acceptance and rejection."""
    completions = _decode(target, draft, 3, [Request(prompt, 30, 0) for prompt in PROMPTS])

    assert {0, 1, 2, 3} == {count for completion in completions for count in completion.accepted}


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.7, 12, 0.9)], ids=str)
def test_a_draft_that_is_the_target_is_always_accepted(target: Any, sampling: Sampling) -> None:
    """With q = p nothing is rejected: each round yields gamma + 1 tokens."""
    requests = [Request(prompt, 12, seed) for seed, prompt in enumerate(PROMPTS)]
    completions = _decode(target, target, 3, requests, sampling)

    assert [[3, 3, 3]] * len(requests) == [completion.accepted for completion in completions]
    assert [3] * len(requests) == [completion.rounds for completion in completions]


@pytest.mark.parametrize("gamma", [0, 2, 5])
def test_a_stop_token_ends_a_completion_inside_a_block(target: Any, gamma: int) -> None:
    """The stop token counts, what the block held behind it is dropped, and no other row is cut."""
    plain = [greedy_text(target, prompt, 20, VOCABULARY) for prompt in PROMPTS[:3]]
    stop = plain[0][3]
    requests = [Request(prompt, 20, 0) for prompt in PROMPTS[:3]]
    completions = _decode(target, target if gamma else None, gamma, requests, stop_tokens=[stop])

    for text, completion in zip(plain, completions, strict=True):
        end = text.index(stop) + 1 if stop in text else 20
        assert (text[:end], end, stop in text) == (completion.tokens, completion.length, completion.stopped)


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_overrun_goes_on_past_stop_and_limit(target: Any, draft: Any, gamma: int) -> None:
    """`overrun` further tokens follow a stop token and a limit alike, ignore stop tokens, and count for no figure."""
    plain = [greedy_text(target, prompt, 30, VOCABULARY) for prompt in PROMPTS[:3]]
    stop = plain[0][4]
    requests = [Request(prompt, 12, 0, overrun=7) for prompt in PROMPTS[:3]]
    completions = _decode(target, draft if gamma else None, gamma, requests, stop_tokens=[stop])

    for text, completion in zip(plain, completions, strict=True):
        length = text.index(stop) + 1 if stop in text[:12] else 12
        assert text[: length + 7] == completion.tokens
        assert (length, stop in text[:12]) == (completion.length, completion.stopped)
        assert sum(completion.accepted[:-1]) + completion.rounds - 1 < length


def test_a_stop_token_at_the_limit_is_a_stop(target: Any) -> None:
    """Where both happen at once the completion ended by itself."""
    plain = greedy_text(target, PROMPTS[3], 40, VOCABULARY)
    at = next(index for index, token in enumerate(plain) if token not in plain[:index] and index > 0)
    (completion,) = _decode(target, None, 0, [Request(PROMPTS[3], at + 1, 0)], stop_tokens=[plain[at]])

    assert (at + 1, True) == (completion.length, completion.stopped)


@pytest.mark.parametrize("gamma", [0, 3])
def test_a_row_does_not_depend_on_its_batch(target: Any, draft: Any, gamma: int) -> None:
    """A sampled completion is the same alone, among others, in another order, and when others finish before it."""
    requests = [Request(prompt, 16, seed) for seed, prompt in enumerate(PROMPTS)]
    model = draft if gamma else None
    alone = [_decode(target, model, gamma, [request], Sampling())[0] for request in requests]
    together = _decode(target, model, gamma, requests, Sampling())
    shuffled = _decode(target, model, gamma, requests[::-1], Sampling())[::-1]
    finishing = [Request(r.prompt, 16 if row == 2 else row + 1, r.seed) for row, r in enumerate(requests)]

    assert alone == together
    assert alone == shuffled
    assert alone[2] == _decode(target, model, gamma, finishing, Sampling())[2]


def test_seeds_make_the_difference(target: Any) -> None:
    """The same prompt under another seed gives another text (32^-40 says it would not by chance)."""
    one, other, again = _decode(target, None, 0, [Request(PROMPTS[0], 40, seed) for seed in (1, 2, 1)], Sampling(3.0))

    assert one == again
    assert one.tokens != other.tokens


@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_statistics_account_for_every_token(target: Any, draft: Any, gamma: int) -> None:
    """Accepted tokens plus one a round cover the completion, and without the last round they do not."""
    requests = [Request(prompt, 23, seed, overrun=3) for seed, prompt in enumerate(PROMPTS)]
    for completion in _decode(target, draft, gamma, requests, Sampling()):
        assert completion.rounds == len(completion.accepted)
        assert sum(completion.accepted) + completion.rounds >= completion.length
        assert sum(completion.accepted[:-1]) + completion.rounds - 1 < completion.length
        assert set(completion.accepted) <= set(range(gamma + 1))


def test_vocabularies_of_different_widths() -> None:
    """Padded columns, however likely, are never drafted and never emitted, on either side."""
    target, draft = table_model(8, 1, padding=3), table_model(8, 2, padding=5)
    (completion,) = _decode(target, draft, 2, [Request([1, 2], 200, 0)], Sampling(), vocabulary=8)
    padded = tiny_llama(1, vocabulary=40)

    assert set(range(8)) >= set(completion.tokens)
    (completion,) = _decode(tiny_llama(2), padded, 2, [Request([1, 2], 9, 0)])
    assert greedy_text(tiny_llama(2), [1, 2], 9, VOCABULARY) == completion.tokens


@pytest.mark.parametrize("request_", [Request([], 5, 0), Request([1], 0, 0)])
def test_what_cannot_be_decoded_is_a_usage_error(target: Any, request_: Request) -> None:
    """An empty prompt or no token to emit names the request."""
    with pytest.raises(UsageError, match="request 1"):
        _decode(target, None, 0, [Request([1], 5, 0), request_])


def test_gamma_needs_a_draft(target: Any) -> None:
    """Speculating without a draft model is a usage error."""
    with pytest.raises(UsageError, match="no draft model"):
        Decoder(target, None, sampling=GREEDY, vocabulary=VOCABULARY, gamma=2)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=str)
@pytest.mark.parametrize("damaged", ["target", "draft"])
def test_a_damaged_model_is_an_error(sampling: Sampling, damaged: str) -> None:
    """NaN logits of either model stop a decode, at temperature 0 too, where argmax would return a token."""
    models = {"target": table_model(4, 1), "draft": table_model(4, 2)}
    models[damaged].table_PVW[:] = math.nan

    with pytest.raises(UnderstudyError, match="not numbers"):
        _decode(models["target"], models["draft"], 2, [Request([1], 8, 0)], sampling, vocabulary=4)


def test_tokens_are_reported_as_they_come(target: Any, draft: Any) -> None:
    """`on_tokens` hears of every emitted token exactly once, overrun included."""
    heard: list[int] = []
    decoder = Decoder(target, draft, sampling=GREEDY, vocabulary=VOCABULARY, gamma=3)
    completions = decoder.decode(
        [Request(p, n, 0, overrun=2) for p, n in zip(PROMPTS, LIMITS, strict=True)], heard.append
    )

    assert sum(len(completion.tokens) for completion in completions) == sum(heard)


def test_the_observer_sees_the_logits_each_token_came_from(target: Any, draft: Any) -> None:
    """Emitted token i of a row is the argmax of logits i it is shown, and the tokens add up to the completions."""
    seen: dict[int, list[int]] = {}

    def observe(running: list[int], logits_BTV: torch.Tensor, emitted_BT: np.ndarray, counts_B: np.ndarray) -> None:
        for row, number in enumerate(running):
            for index in range(int(counts_B[row])):
                assert int(logits_BTV[row, index].argmax()) == emitted_BT[row, index]
                seen.setdefault(number, []).append(int(emitted_BT[row, index]))

    requests = [Request(p, n, 0, overrun=2) for p, n in zip(PROMPTS, LIMITS, strict=True)]
    completions = _decode(target, draft, 3, requests, observer=observe)

    assert {number: completion.tokens for number, completion in enumerate(completions)} == seen


def _exact_law(model: TableModel, prompt: list[int], count: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """The law of the next `count` tokens of a table model, by multiplication."""
    p_PVV = log_probabilities(model.table_PVW, sampling).exp().tolist()
    law = {}
    for text in itertools.product(range(len(p_PVV[0])), repeat=count):
        whole, chance = [*prompt, *text], 1.0
        for position in range(len(prompt) - 1, len(whole) - 1):
            chance *= p_PVV[position % len(p_PVV)][whole[position]][whole[position + 1]]
        law[text] = chance
    return law


@pytest.mark.parametrize(
    ("gamma", "sampling", "draft_sampling"),
    [
        (0, Sampling(), None),
        (1, Sampling(), None),
        (3, Sampling(), None),
        (2, Sampling(), GREEDY),
        (3, Sampling(0.8, top_p=0.9), Sampling(0.8)),
    ],
    ids=str,
)
def test_sampled_text_has_the_law_of_the_target(
    gamma: int, sampling: Sampling, draft_sampling: Sampling | None
) -> None:
    """Chi-square of three tokens of 2,000 completions, whose rounds began at different places, against the exact law
    (false alarm 1e-7 for each of five cases, were the seeds drawn anew)."""
    target, draft = table_model(4, 1, positions=3), table_model(4, 2, positions=3)
    requests = [Request([2, 1], 3, seed) for seed in range(2000)]
    options = {"vocabulary": 4, "draft_sampling": draft_sampling}
    completions = _decode(target, draft, gamma, requests, sampling, **options)
    seen = Counter(tuple(completion.tokens) for completion in completions)
    law = _exact_law(target, [2, 1], 3, sampling)

    assert all(law[text] > 0 for text in seen)
    # Cells too rare for the approximation are pooled.
    cells = {text: 2000 * chance for text, chance in law.items() if 2000 * chance >= 5}
    expected = [*cells.values(), 2000 - sum(cells.values())]
    found = [*(seen[text] for text in cells), 2000 - sum(seen[text] for text in cells)]
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if b > 1]
    statistic = sum((a - b) ** 2 / b for a, b in pairs)
    assert chi2.isf(1e-7, len(pairs) - 1) > statistic

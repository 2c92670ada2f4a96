"""The decoding loop: greedy speculative output equals plain output, row by row. Its distribution is tested elsewhere."""

import math
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError, UsageError
from pipeline.speculation.batch import Completion, Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.llama_forward import LlamaForward
from pipeline.speculation.model_forward import ModelForward
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import decoder_of, greedy_text, ragged_requests, table_model, tiny_llama

VOCABULARY = 32
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3], [5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [6, 2, 6, 4]]
LIMITS = [11, 3, 14, 6, 1]


def _decode(
    target: Any, draft: Any, gamma: int, requests: list[Request], sampling: Sampling = GREEDY, **options: Any
) -> list[Completion]:
    options = {"vocabulary": VOCABULARY} | options
    return Decoder(
        target, draft and PlainDraft(draft, options["vocabulary"]), sampling=sampling, gamma=gamma, **options
    ).decode(requests)


@pytest.fixture(scope="module")
def greedy(target: Any) -> list[list[int]]:
    return [greedy_text(target, request.prompt, request.limit, VOCABULARY) for request in ragged_requests(32)]


@pytest.mark.parametrize("llama_forward", [True, False], ids=["llama_forward", "own"])
@pytest.mark.parametrize(("gamma", "batch"), [(0, 32), (1, 32), (5, 32), (2, 1)])
def test_greedy_speculation_equals_greedy_decoding(
    target: Any, draft: Any, greedy: list[list[int]], gamma: int, batch: int, llama_forward: bool
) -> None:
    """In fp64, with a different draft, for every gamma and both forwards, the tokens equal those of the target's full passes."""
    requests = ragged_requests(batch)
    decoder = decoder_of(target, draft if gamma else None, gamma, llama_forward=llama_forward)
    completions = decoder.decode(requests)

    assert isinstance(decoder.target, LlamaForward if llama_forward else ModelForward)
    assert greedy[:batch] == [completion.tokens for completion in completions]
    assert [request.limit for request in requests] == [completion.length for completion in completions]


@pytest.mark.parametrize(
    ("dtype", "llama_forward", "sampling"),
    [
        (torch.float32, True, GREEDY),
        (torch.bfloat16, True, GREEDY),
        (torch.bfloat16, False, GREEDY),
        (torch.bfloat16, True, Sampling(0.5)),
    ],
    ids=str,
)
def test_a_draft_in_lower_precision_changes_nothing(
    target: Any, dtype: torch.dtype, llama_forward: bool, sampling: Sampling
) -> None:
    """A target in fp64 with its fp32 or bf16 copy as draft: greedy text is the target's, sampled text is complete, and
    most draft tokens are accepted."""
    small = tiny_llama(11, layers=1, dtype=dtype)
    requests = ragged_requests(5)
    completions = _decode(target, small, 3, requests, sampling, llama_forward=llama_forward)

    assert [request.limit for request in requests] == [len(completion.tokens) for completion in completions]
    if sampling.greedy:
        said = [completion.tokens for completion in completions]
        pairs = zip(requests, said, strict=True)
        assert [greedy_text(target, r.prompt, r.limit, VOCABULARY, guess=tokens) for r, tokens in pairs] == said
    drafted, accepted = (sum(sum(getattr(c, name)) for c in completions) for name in ("drafted", "accepted"))
    assert accepted > 0.7 * drafted


def test_the_draft_above_is_neither_perfect_nor_useless(target: Any, draft: Any) -> None:
    """The fixtures produce both accepted and rejected tokens."""
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
    """The stop token counts, later tokens of the block are dropped, and other rows are not affected."""
    plain = [greedy_text(target, prompt, 20, VOCABULARY) for prompt in PROMPTS[:3]]
    stop = plain[0][3]
    requests = [Request(prompt, 20, 0) for prompt in PROMPTS[:3]]
    completions = _decode(target, target if gamma else None, gamma, requests, stop_tokens=[stop])

    for text, completion in zip(plain, completions, strict=True):
        end = text.index(stop) + 1 if stop in text else 20
        assert (text[:end], end, stop in text) == (completion.tokens, completion.length, completion.stopped)


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_lookahead_follows_stop_token_and_limit(target: Any, draft: Any, gamma: int) -> None:
    """`lookahead` tokens follow a stop token or the limit, ignore stop tokens, and are not counted."""
    plain = [greedy_text(target, prompt, 30, VOCABULARY) for prompt in PROMPTS[:3]]
    stop = plain[0][4]
    requests = [Request(prompt, 12, 0, lookahead=7) for prompt in PROMPTS[:3]]
    completions = _decode(target, draft if gamma else None, gamma, requests, stop_tokens=[stop])

    for text, completion in zip(plain, completions, strict=True):
        length = text.index(stop) + 1 if stop in text[:12] else 12
        assert text[: length + 7] == completion.tokens
        assert (length, stop in text[:12]) == (completion.length, completion.stopped)
        assert sum(completion.accepted[:-1]) + completion.rounds - 1 < length


def test_a_stop_token_at_the_limit_is_a_stop(target: Any) -> None:
    """If both happen at the same token, the completion is stopped."""
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


@pytest.mark.parametrize("gamma", [1, 5])
def test_statistics_account_for_every_token(target: Any, draft: Any, gamma: int) -> None:
    """Accepted tokens plus one per round cover the completion, and without the last round they do not."""
    requests = [Request(prompt, 23, seed, lookahead=3) for seed, prompt in enumerate(PROMPTS)]
    for completion in _decode(target, draft, gamma, requests, Sampling()):
        assert completion.rounds == len(completion.accepted)
        assert sum(completion.accepted) + completion.rounds >= completion.length
        assert sum(completion.accepted[:-1]) + completion.rounds - 1 < completion.length
        assert set(completion.accepted) <= set(range(gamma + 1))
        left = 23 + 3
        for drafted, accepted in zip(completion.drafted, completion.accepted, strict=True):
            assert min(gamma, left - 1) == drafted >= accepted
            left -= accepted + 1


def test_vocabularies_of_different_widths() -> None:
    """Padding columns are never drafted or emitted, however large their logits are, in either model."""
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
    with pytest.raises(UsageError, match="no draft"):
        Decoder(target, None, sampling=GREEDY, vocabulary=VOCABULARY, gamma=2)


def test_a_negative_gamma_is_a_usage_error(target: Any, draft: Any) -> None:
    """The error states that 0 is plain decoding."""
    with pytest.raises(UsageError, match="0 \\(plain decoding\\) or more"):
        Decoder(target, PlainDraft(draft, VOCABULARY), sampling=GREEDY, vocabulary=VOCABULARY, gamma=-1)


def test_an_empty_batch_is_decoded_to_nothing(target: Any) -> None:
    """An empty batch is not an error."""
    assert [] == _decode(target, None, 0, [])


@pytest.mark.parametrize("verification", ["token", "block"])
@pytest.mark.parametrize("draft_sampling", [None, GREEDY], ids=["as the target", "greedy draft"])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("damaged", ["target", "draft"])
def test_a_damaged_model_is_an_error(
    sampling: Sampling, damaged: str, draft_sampling: Sampling | None, verification: str
) -> None:
    """NaN or infinite logits of either model raise an error for all kinds of drafting and verification, also at
    temperature 0, where argmax would return a token."""
    options = {"vocabulary": 4, "draft_sampling": draft_sampling, "verification": verification}
    for damage in (math.nan, math.inf):
        models = {"target": table_model(4, 1), "draft": table_model(4, 2)}
        models[damaged].table_PVW[:] = damage
        with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
            _decode(models["target"], models["draft"], 2, [Request([1], 8, 0)], sampling, **options)


@pytest.mark.parametrize(("llama_forward", "sampling"), [(True, GREEDY), (False, Sampling())], ids=str)
@pytest.mark.parametrize("damaged", [0, 1])
def test_damaged_weights_are_an_error(llama_forward: bool, damaged: int, sampling: Sampling) -> None:
    """One NaN in a real model's weights raises an error with both forwards."""
    models = [tiny_llama(1), tiny_llama(2)]
    with torch.no_grad():
        models[damaged].model.layers[0].mlp.up_proj.weight[0, 0] = math.nan

    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        _decode(*models, 2, [Request([1], 8, 0)], sampling, verification="block", llama_forward=llama_forward)

"""Positions of train prompts that are trained on: which they are, and that the target's distributions are stored for them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.corpus.prompt_store import Prompt
from pipeline.generation.completion_plan import shards_of
from pipeline.generation.completion_store import read_completions
from pipeline.generation.distributions import unpack
from pipeline.generation.prompt_positions import PromptPositions
from pipeline.generation.sample_test import StoredShards, stored_test
from pipeline.generation.shard_worker import Shard
from pipeline.speculation.settings import Sampling
from tests.fakes import full_logits, generation_settings, numbered_prompt, tiny_llama
from tests.unit.generation.shards import VOCABULARY, open_model, shard_work


def _prompt(number: int, *tokens: int, **more: str) -> Prompt:
    return numbered_prompt(number, tokens, **more)


def _found(prompts: list[Prompt], most: int = 9) -> dict[int, tuple[list[int], list[int]]]:
    """By the number of the prompt: what is scored, and what comes before it."""
    positions = PromptPositions.of(prompts, most)
    return {
        int(item.prompt.id, 16): (
            positions.get(item.prompt.id, item.sampling).tokens_N.tolist(),
            list(item.prompt.tokens),
        )
        for item in positions.requests
    }


def test_what_prompts_of_a_domain_have_in_common_is_left_out() -> None:
    """Of each domain, and of each mode of the template, its own."""
    prompts = [
        _prompt(1, 7, 7, 1, 2, 3, 9, 8),
        _prompt(2, 7, 7, 4, 9, 8),
        _prompt(3, 5, 6, 1, domain="chat"),
        _prompt(4, 5, 6, 2, domain="chat"),
        _prompt(5, 7, 6, 2, domain="chat", mode="thinking"),
        _prompt(6, 8, 6, 2, domain="chat", mode="thinking"),
    ]
    # Of the last two the first token is their own, and nothing predicts it.
    assert {1: ([1, 2, 3], [7, 7]), 2: ([4], [7, 7]), 3: ([1], [5, 6]), 4: ([2], [5, 6])} == _found(prompts)


@pytest.mark.parametrize(("most", "scored"), [(1, [[5], [6]]), (2, [[4, 5], [6]]), (9, [[2, 3, 4, 5], [6]])], ids=str)
def test_the_last_positions_count(most: int, scored: list[list[int]]) -> None:
    """At most so many; the first token of a prompt follows nothing."""
    found = _found([_prompt(1, 1, 2, 3, 4, 5), _prompt(2, 7, 6)], most)
    assert scored == [found[number][0] for number in (1, 2)]


@pytest.mark.parametrize("tokens", [(1, 2, 3), (4,)])
def test_prompts_that_are_all_template_have_none(tokens: tuple[int, ...]) -> None:
    """One prompt of a domain does not tell what is the template's; neither do equal ones."""
    assert {} == _found([_prompt(1, *tokens)]) == _found([_prompt(1, *tokens), _prompt(2, *tokens)])


def test_a_few_other_prompts_change_nothing() -> None:
    """What more than half of the prompts of a domain share is left out; one that begins otherwise keeps what is its own."""
    prompts = [_prompt(n, 7, 7, 7, n, 9, 8) for n in range(20, 25)]
    others = [_prompt(1, 7, 1, 2, 8), _prompt(2, 3, 4, 9, 8)]
    found = _found([*prompts, *others])
    assert {n: ([n], [7, 7, 7]) for n in range(20, 25)} | {1: ([1, 2], [7]), 2: ([4], [3])} == found
    assert 5 * 5 + 2 + 2 == PromptPositions.of([*prompts, *others], 9).shared


def test_beginning_and_end_may_overlap() -> None:
    """The longer prompt then has nothing of its own."""
    assert {} == _found([_prompt(1, 5, 5), _prompt(2, 5, 5, 5)])
    assert {2: ([6], [5, 5])} == _found([_prompt(1, 5, 5), _prompt(2, 5, 5, 6)])


@pytest.fixture
def target() -> Any:
    return tiny_llama(1, layers=1, dtype=torch.float32)


def _scored(target: Any, positions: PromptPositions, out: Path) -> list[Any]:
    settings = generation_settings(sampling=Sampling(), distribution_tokens=31, batch=8, shard=3)
    make = open_model(shard_work(settings), target)
    for name, requests in shards_of(positions.requests, settings.shard, 1):
        own = list(requests)
        make(Shard(name, own, positions.of_requests(own)), out, lambda tokens: None)
    return list(read_completions(out))


def test_the_targets_distributions_are_stored(target: Any, tmp_path: Path) -> None:
    """Those after the tokens before each position, as one pass over the whole prompt gives them."""
    generator = np.random.default_rng(0)
    prompts = [_prompt(n, *generator.integers(2, VOCABULARY, 5 + n).tolist()) for n in range(7)]
    items = _scored(target, PromptPositions.of(prompts, 6), tmp_path)

    assert {prompt.id for prompt in prompts} == {item.id for item in items}
    for item in items:
        whole = prompts[int(item.id, 16)].tokens
        assert [*item.prompt, *item.tokens] == list(whole)
        assert 6 >= item.length == len(item.tokens)
        assert len(whole) - item.length == len(item.prompt)
        expected = full_logits(target, list(whole))[:, :VOCABULARY].log_softmax(-1)[len(item.prompt) - 1 : -1]
        ids_NK, log_p_NK = unpack(item.entries, item.certain, item.rest_log_p, VOCABULARY)
        np.testing.assert_allclose(np.take_along_axis(expected.numpy(), ids_NK, 1), log_p_NK, atol=2e-2)
        np.testing.assert_allclose(
            expected.gather(1, torch.tensor(whole[-item.length :])[:, None])[:, 0], item.log_p, atol=1e-4
        )


def test_a_token_that_the_target_cannot_choose_is_scored_too(target: Any, tmp_path: Path) -> None:
    """As a target that excludes tokens does: nothing is generated in its place."""
    bias = torch.zeros(VOCABULARY)
    bias[5] = -torch.inf
    target.lm_head.bias = torch.nn.Parameter(bias)
    items = _scored(target, PromptPositions.of([_prompt(1, 2, 5, 6), _prompt(2, 3, 4, 7)], 3), tmp_path)
    assert [[5, 6], [4, 7]] == [item.tokens.tolist() for item in items]
    assert [2, 2] == [item.length for item in items]


def test_prompts_are_no_samples_of_the_target_and_not_tested_as_such(target: Any, tmp_path: Path) -> None:
    """40 prompts of the target's least likely tokens: a log of such answers would be refused."""
    prompts = []
    for number in range(40):
        tokens = [2 + number % 30]
        while len(tokens) < 6:
            tokens.append(int(full_logits(target, tokens)[-1, :VOCABULARY].argmin()))
        prompts.append(_prompt(number, *tokens, domain=f"{number % 2}"))
    positions = PromptPositions.of(prompts, 6)
    items = _scored(target, positions, tmp_path)
    stored = StoredShards(tmp_path, VOCABULARY)
    stored.expect(path.name.split(".")[0] for path in sorted(tmp_path.glob("*.completions.arrow")))
    stored.look()

    assert 40 == len(items)
    assert 0 == stored_test(tmp_path).recorded.completions

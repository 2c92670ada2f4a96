"""Generation of completions: what is generated and stored, and resuming."""

import hashlib
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpus.prompt_store import Prompt
from pipeline.generation.completion_plan import CompletionPlan, CompletionRequest, plan_completions, shards_of
from pipeline.generation.completion_store import StoredCompletion, read_completions, stored_samplings
from pipeline.generation.distributions import unpack
from pipeline.generation.generate import GenerationSettings, generate, seed_of
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import full_logits, generation_settings, greedy_text, numbered_prompt, quiet, tiny_llama

SAMPLED = Sampling(0.9, top_k=20)
SETTINGS = generation_settings(sampling=SAMPLED, lookahead=3, distribution_tokens=4, batch=3, seed=7)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(61, layers=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    generator = np.random.default_rng(0)
    splits = ["train", "examination", "train", "dev", "examination", "train", "examination", "train"]
    tokens = [generator.integers(2, 32, 1 + 2 * n % 7).tolist() for n in range(8)]
    return [
        numbered_prompt(n, tokens[n], split, conversation=f"{n // 2:016x}", mode=f"m={n % 2 > 0}")
        for n, split in enumerate(splits)
    ]


@pytest.fixture(scope="module")
def stored(
    model: Any, prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[StoredCompletion]]:
    out = tmp_path_factory.mktemp("completions")
    _generate(model, prompts, out)
    return out, list(read_completions(out))


def _generate(model: Any, prompts: list[Prompt], out: Path, settings: GenerationSettings = SETTINGS) -> None:
    generate(model, plan_completions(prompts, settings.sampling), settings, 32, [0, 1], out, quiet())


def test_every_prompt_gets_a_completion_and_examination_prompts_two(prompts: list[Prompt]) -> None:
    """One at the deployment's settings each, plus a greedy one for examination prompts; at temperature 0 they are the same."""
    requests = [(item.prompt.id, item.sampling.greedy) for item in plan_completions(prompts, SAMPLED)]
    examined = [(prompt.id, True) for prompt in prompts if prompt.split == "examination"]

    assert sorted([(prompt.id, False) for prompt in prompts] + examined) == sorted(requests)
    assert sorted((prompt.id, True) for prompt in prompts) == sorted(
        (item.prompt.id, item.sampling.greedy) for item in plan_completions(prompts, GREEDY)
    )


def test_a_completion_names_what_its_prompt_belongs_to(
    prompts: list[Prompt], stored: tuple[Path, list[StoredCompletion]]
) -> None:
    """Text, conversation and mode, by which prompts are told apart and grouped later."""
    named = {prompt.id: (prompt.text_id, prompt.conversation, prompt.mode) for prompt in prompts}

    assert all((item.text_id, item.conversation, item.mode) == named[item.id] for item in stored[1])


def test_further_tuples_are_for_the_examination_alone(
    model: Any, prompts: list[Prompt], stored: tuple[Path, list[StoredCompletion]], tmp_path: Path
) -> None:
    """Examination prompts get one more completion for each further sampling; existing completions are unchanged byte by
    byte; repeating the deployment or temperature 0 adds nothing."""
    warm, hot = Sampling(0.5), Sampling(1.3, top_p=0.9)
    requests = plan_completions(prompts, SAMPLED, [warm, SAMPLED, Sampling(0.0, 9), hot])
    generate(model, requests, SETTINGS, 32, [0, 1], tmp_path, quiet())
    found = list(read_completions(tmp_path))

    for path in stored[0].iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert {SAMPLED: 8, GREEDY: 3, warm: 3, hot: 3} == stored_samplings(tmp_path)
    assert {"examination"} == {item.split for item in found if item.sampling in (warm, hot)}
    drawn = {sampling: [i.tokens.tolist() for i in found if i.sampling == sampling] for sampling in (warm, hot)}
    assert drawn[warm] != drawn[hot]


def test_train_prompts_may_have_several_completions(
    model: Any, prompts: list[Prompt], stored: tuple[Path, list[StoredCompletion]], tmp_path: Path
) -> None:
    """One for each temperature; repeated temperatures give different completions; other splits are unchanged."""
    cold = Sampling(0.5, top_k=20)
    requests = plan_completions(prompts, SAMPLED, train_at=[SAMPLED, cold, SAMPLED])
    generate(model, requests, SETTINGS, 32, [0, 1], tmp_path, quiet())
    found = list(read_completions(tmp_path))
    trained = [item for item in found if item.split == "train"]
    first = next(item.id for item in trained)
    own = [item.tokens.tolist() for item in trained if item.id == first]

    assert 3 * sum(prompt.split == "train" for prompt in prompts) == len(trained)
    assert 3 == len({tuple(tokens) for tokens in own})
    others = [(i.id, i.sampling, i.tokens.tolist()) for i in found if i.split != "train"]
    before = [(i.id, i.sampling, i.tokens.tolist()) for i in stored[1] if i.split != "train"]
    assert sorted(before, key=str) == sorted(others, key=str)
    assert {tuple(i.tokens.tolist()) for i in stored[1] if i.split == "train"} <= {
        tuple(i.tokens.tolist()) for i in trained
    }


def test_seeds_are_those_of_the_first_version(prompts: list[Prompt]) -> None:
    """Completions at the deployment's settings and at temperature 0 keep their seeds across versions; further samplings
    have their own."""

    def digest(kind: str) -> int:
        return int.from_bytes(hashlib.sha256(f"7/{prompts[1].id}/{kind}".encode()).digest()[:8], "big")

    samplings = [SAMPLED, GREEDY, Sampling(0.5, 0, 0.9)]
    found = [seed_of(SETTINGS, CompletionRequest(prompts[1], sampling)) for sampling in samplings]
    assert [digest("False"), digest("True"), digest("0.5/0/0.9/0.0")] == found


def _place(plan: CompletionPlan, item: CompletionRequest) -> tuple[object, ...]:
    prompt = item.prompt
    return plan.kinds.index(item.sampling), prompt.split != "examination", len(prompt.tokens), prompt.id, item.number


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["train", "dev", "examination"]), st.integers(1, 4)), min_size=1, max_size=12),
    st.lists(st.sampled_from([SAMPLED, GREEDY, Sampling(0.5)]), max_size=3),
    st.lists(st.sampled_from([SAMPLED, Sampling(0.5)]), max_size=3),
    st.integers(1, 5),
)
def test_a_plan_is_sorted_as_its_requests_are(
    shapes: list[tuple[str, int]], examined: list[Sampling], train_at: list[Sampling], size: int
) -> None:
    """Indices are sorted as the requests themselves would be, and shards are cut in the same places."""
    made = [
        Prompt(hashlib.sha256(bytes([n])).hexdigest()[:16], split, "d", n, (5,) * length, text_id="t", conversation="t")
        for n, (split, length) in enumerate(shapes)
    ]
    plan = plan_completions(made, SAMPLED, examined, train_at)
    assert sorted(random.Random(0).sample(plan, len(plan)), key=partial(_place, plan)) == list(plan)
    shards = [(name, list(part)) for name, part in shards_of(plan, size, 1)]
    assert shards_of(list(plan), size, 1) == shards


def test_completions_have_their_length_and_lookahead(stored: tuple[Path, list[StoredCompletion]]) -> None:
    """At most the limit, ended by a stop token or the limit, and `lookahead` more tokens for examination prompts only."""
    for item in stored[1]:
        said = item.tokens[: item.length].tolist()
        assert len(item.tokens) == item.length + (3 if item.split == "examination" else 0)
        assert not {0, 1} & set(said[:-1])
        assert item.stopped == (said[-1] in (0, 1))
        assert item.stopped or item.length == 9
    assert any(item.stopped for item in stored[1])


def test_greedy_completions_are_the_argmax(model: Any, stored: tuple[Path, list[StoredCompletion]]) -> None:
    """Greedy completions are argmax text with log p of 0; sampled ones of the same prompts are not."""
    greedy = [item for item in stored[1] if item.greedy]

    assert 3 == len(greedy)
    for item in greedy:
        assert greedy_text(model, item.prompt.tolist(), len(item.tokens), 32) == item.tokens.tolist()
        assert not item.log_p.any()
    sampled = {item.id: item.tokens.tolist() for item in stored[1] if not item.greedy}
    assert any(sampled[item.id] != item.tokens.tolist() for item in greedy)


def test_stored_probabilities_are_the_models(model: Any, stored: tuple[Path, list[StoredCompletion]]) -> None:
    """log p is under the sampling settings, the distributions are at temperature 1; each belongs to its token."""
    for item in stored[1]:
        if item.greedy:
            continue
        logits_NV = full_logits(model, [*item.prompt.tolist(), *item.tokens.tolist()])[len(item.prompt) - 1 : -1]
        log_p_NV, log_p1_NV = log_probabilities(logits_NV, SAMPLED), logits_NV.log_softmax(-1)
        own = log_p_NV.gather(1, torch.tensor(item.tokens.tolist())[:, None])[:, 0]
        ids_NK, kept_NK = unpack(item.entries, item.certain, item.rest_log_p, 32)

        np.testing.assert_allclose(own.numpy(), item.log_p, atol=1e-4)
        np.testing.assert_allclose(log_p1_NV.gather(1, torch.from_numpy(ids_NK)).numpy(), kept_NK, atol=4e-3)
        for row, certain in enumerate(item.certain.tolist()):
            top = log_p1_NV[row].topk(certain)
            assert top.indices.tolist() == ids_NK[row, :certain].tolist()
            rest = 1 - float(top.values.double().exp().sum())
            assert np.log(rest) == pytest.approx(float(item.rest_log_p[row]), abs=2e-2)
        assert 4 == len(set(ids_NK[0].tolist()))


def test_a_resumed_run_writes_the_bytes_of_an_unbroken_one(
    model: Any, prompts: list[Prompt], stored: tuple[Path, list[StoredCompletion]], tmp_path: Path
) -> None:
    """Only the missing shard is generated, with the same bytes; the others are not touched."""
    whole, lost = {path.name: path.read_bytes() for path in stored[0].iterdir()}, "shard-00000"
    assert {"shard-00000", "shard-00001", "shard-00002"} == {name.partition(".")[0] for name in whole}
    for name, content in whole.items():
        if not name.startswith(f"{lost}.completions"):
            (tmp_path / name).write_bytes(content)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if not path.name.startswith(lost)}
    _generate(model, prompts, tmp_path)

    assert whole == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {name: (tmp_path / name).stat().st_mtime_ns for name in kept}


def test_a_completion_does_not_depend_on_what_else_is_asked_for(
    model: Any, prompts: list[Prompt], stored: tuple[Path, list[StoredCompletion]], tmp_path: Path
) -> None:
    """Without the last prompt, in smaller batches or with another shard size, the tokens are the same."""

    def said(items: Iterable[StoredCompletion]) -> dict[Any, Any]:
        kept = [(item, unpack(item.entries, item.certain, item.rest_log_p, 32)[0]) for item in items]
        return {(item.id, item.greedy): (item.tokens.tolist(), ids_NK.tolist()) for item, ids_NK in kept}

    expected = said(stored[1])
    variants = [replace(SETTINGS, batch=1), replace(SETTINGS, shard=100, batch=11)]
    for number, variant in enumerate(variants):
        out = tmp_path / str(number)
        out.mkdir()
        _generate(model, prompts[: len(prompts) - number], out, variant)
        found = said(read_completions(out))
        assert {key: expected[key] for key in found} == found


def test_the_seed_makes_the_difference(model: Any, prompts: list[Prompt], tmp_path: Path) -> None:
    """Another seed gives other sampled completions, and the same greedy ones."""
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        _generate(model, prompts, tmp_path / str(seed), replace(SETTINGS, seed=seed))
    one, other = (list(read_completions(tmp_path / str(seed))) for seed in (1, 2))

    assert [i.tokens.tolist() for i in one if i.greedy] == [i.tokens.tolist() for i in other if i.greedy]
    assert [i.tokens.tolist() for i in one if not i.greedy] != [i.tokens.tolist() for i in other if not i.greedy]


def test_every_completion_and_every_kept_token_is_drawn_anew(tmp_path: Path) -> None:
    """Every completion has its own random stream: with a shared one, prompts that look alike to the model would get the same
    text. Each position has its own random number for what is kept, different from those of the text: for a flat distribution
    of 32 tokens in four entries, the first is one of eight. Equal by chance: below 10^-6."""
    with torch.no_grad():
        model = tiny_llama(3, layers=1)
        model.lm_head.weight.zero_()  # every token is equally likely, whatever came before
    prompts = [numbered_prompt(n, (2 + n, 3)) for n in range(4)]
    settings = replace(SETTINGS, sampling=Sampling(), max_new_tokens=12)
    generate(model, plan_completions(prompts, Sampling()), settings, 32, [], tmp_path, quiet())
    found = list(read_completions(tmp_path))
    first = [unpack(i.entries, i.certain, i.rest_log_p, 32)[0][:, 0].tolist() for i in found]

    assert 4 == len({tuple(item.tokens.tolist()) for item in found}) == len(set(map(tuple, first)))
    assert all(len(set(row)) > 1 for row in first)
    assert all([token // 4 for token in i.tokens.tolist()] != row for i, row in zip(found, first, strict=True))


@pytest.mark.parametrize(("how", "drawn"), [("top_k", False), ("sampled", True)])
def test_tokens_are_kept_as_asked(how: Any, drawn: bool, model: Any, prompts: list[Prompt], tmp_path: Path) -> None:
    """The likeliest four, or some of them sampled."""
    _generate(model, prompts, tmp_path, replace(SETTINGS, distribution_selection=how))

    assert drawn == any(bool((item.certain < 4).any()) for item in read_completions(tmp_path))

"""The target's distributions at every position of a given completion."""

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.distillation.on_policy import RoundSampler
from pipeline.distillation.settings import RoundSettings
from pipeline.errors import UnderstudyError
from pipeline.generation import scoring
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.generation.distributions import unpack
from pipeline.generation.generate import generate, seed_of
from pipeline.generation.scoring import DraftCompletion, score
from pipeline.speculation.sampling import log_probabilities
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import full_logits, generation_settings, numbered_prompt, quiet, tiny_llama

SAMPLING = Sampling(0.8)
SETTINGS = generation_settings(sampling=SAMPLING, distribution_tokens=5)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(7, layers=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def generated(
    target: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[StoredCompletion], list[DraftCompletion]]:
    """What a target said, as it was stored, and the same as if another had written it."""
    generator, out = np.random.default_rng(0), tmp_path_factory.mktemp("said")
    prompts = [
        numbered_prompt(n, generator.integers(2, 32, 2 + n).tolist(), conversation=f"{n // 2:016x}") for n in range(6)
    ]
    wanted = plan_completions(prompts, SAMPLING)
    generate(target, wanted, SETTINGS, 32, range(24, 32), out, quiet())
    seeds = {item.prompt.id: seed_of(SETTINGS, item) for item in wanted}
    said = list(read_completions(out))
    return said, [_written(vars(item), seeds[item.id]) for item in said]


def _written(known: dict[str, Any], seed: int = 0) -> DraftCompletion:
    """With the fields that are known; the others are of no account."""
    usual: dict[str, Any] = dict.fromkeys(("id", "text_id", "conversation"), "a")
    usual |= {"split": "train", "domain": "code", "stopped": False, "seed": seed}
    names = {field.name for field in fields(DraftCompletion)}
    return DraftCompletion(**{**usual, **{name: value for name, value in known.items() if name in names}})


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_scored_texts_are_stored_as_generated_ones(
    target: Any, generated: tuple[list[StoredCompletion], list[DraftCompletion]], batch_tokens: int
) -> None:
    """The same tokens are stored with the same probabilities, row by row, for any batch size."""
    said, written = generated
    scored = score(target, written, SAMPLING, 5, "sampled", 32, batch_tokens)

    assert len({item.length for item in said}) > 1
    for one, other in zip(said, scored, strict=True):
        assert (one.id, one.text_id, one.conversation, one.length, one.stopped, one.sampling) == (
            other.id,
            other.text_id,
            other.conversation,
            other.length,
            other.stopped,
            other.sampling,
        )
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_p, other.log_p, atol=1e-4)
        assert one.certain.tolist() == other.certain.tolist()
        first, second = (unpack(item.entries, item.certain, item.rest_log_p, 32) for item in (one, other))
        assert first[0].tolist() == second[0].tolist()
        np.testing.assert_allclose(first[1], second[1], atol=2e-2)


def test_a_given_text_gets_the_targets_distributions(target: Any) -> None:
    """For any text, each position has the target's distribution at temperature 1 and log p under the sampling settings."""
    generator = np.random.default_rng(1)
    prompt, tokens = generator.integers(2, 32, 4).astype(np.int32), generator.integers(2, 32, 6).astype(np.int32)
    written = _written({"prompt": prompt, "tokens": tokens})
    (found,) = score(target, [written], SAMPLING, 31, "top_k", 32, 100)
    logits_TV = full_logits(target, [*prompt, *tokens])[len(prompt) - 1 : -1]
    ids, log_p = unpack(found.entries, found.certain, found.rest_log_p, 32)
    expected = torch.as_tensor(logits_TV).log_softmax(-1)

    np.testing.assert_allclose(expected.gather(1, torch.from_numpy(ids)).exp(), np.exp(log_p), atol=2e-3)
    own = log_probabilities(torch.as_tensor(logits_TV), SAMPLING)[torch.arange(6), torch.from_numpy(tokens).long()]
    np.testing.assert_allclose(own, found.log_p, atol=1e-4)


def test_out_of_memory_names_a_batch_that_fits(
    target: Any, generated: tuple[list[StoredCompletion], list[DraftCompletion]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with the longest completion, and scored with it."""
    whole = scoring._score

    def limited(model: Any, rows: Sequence[DraftCompletion], **rest: Any) -> Any:
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(model, rows, **rest)

    monkeypatch.setattr(scoring, "_score", limited)
    _, written = generated
    with pytest.raises(UnderstudyError) as found:
        score(target, written, SAMPLING, 5, "sampled", 32, 1000)
    said = re.match(
        r"evaluate\.batch_tokens = 1000: out of memory; (\d+) fits: set evaluate\.batch_tokens to \1 ", str(found.value)
    )
    assert said is not None
    assert len(written) == len(score(target, written, SAMPLING, 5, "sampled", 32, int(said[1])))


def test_a_greedy_text_is_stored_as_greedy(target: Any) -> None:
    """Temperature 0 is stored in its canonical form."""
    item = _written({"prompt": np.array([3], np.int32), "tokens": np.array([4], np.int32), "stopped": True})
    (found,) = score(target, [item], Sampling(0.0, top_k=5), 3, "sampled", 32, 100)

    assert GREEDY == found.sampling


def _sampler(target: Any, **sizes: int) -> RoundSampler:
    settings = RoundSettings(target_dtype="float32", max_new_tokens=6, distribution_tokens=4, **sizes)
    return RoundSampler(
        target=lambda: target,
        sampling=GREEDY,
        settings=settings,
        batch_tokens=64,
        vocabulary=32,
        stop_tokens=[0],
        progress=quiet(),
    )


def test_rounds_leave_a_store(tmp_path: Path) -> None:
    """A round stores the draft's own completions, and a resumed round gives the same bytes."""
    from pipeline.speculation.batch import Request
    from pipeline.speculation.decoder import Decoder
    from tests.fakes import stored_completion

    draft, target = tiny_llama(1, layers=1, dtype=torch.float32), tiny_llama(2, dtype=torch.float32)
    generator = np.random.default_rng(0)
    prompts = [
        stored_completion(generator.integers(2, 32, 3 + n % 2), generator.integers(2, 32, 4), name=f"p{n}", seed=n)
        for n in range(5)
    ]
    sampler = _sampler(target, batch=2, shard=2)

    def write(out: Path) -> Sequence[StoredCompletion]:
        return sampler.sample(draft, prompts, 9, out)

    whole = write(tmp_path / "whole")
    write(tmp_path / "again")
    for path in (tmp_path / "again").glob("shard-00001.*"):
        path.unlink()
    write(tmp_path / "again")
    said = Decoder(draft, None, sampling=GREEDY, vocabulary=32, stop_tokens=[0]).decode(
        [Request(item.prompt.tolist(), 6, 0) for item in whole]
    )

    assert sorted(item.id for item in prompts) == sorted(item.id for item in whole)
    assert [item.tokens for item in said] == [item.tokens.tolist() for item in whole]
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_a_round_without_memory_names_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many of the longest prompts as fit; nothing of the shard is written."""
    from pipeline.distillation import on_policy
    from tests.fakes import stored_completion

    whole, asked = on_policy._sample, list[list[int]]()

    def limited(decoder: Any, items: Any, most: int, seed: int) -> Any:
        asked.append([len(item.prompt) for item in items])
        if len(items) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(decoder, items, most, seed)

    monkeypatch.setattr(on_policy, "_sample", limited)
    draft = tiny_llama(1, layers=1, dtype=torch.float32)
    prompts = [stored_completion(range(2, 4 + n), [3, 4], name=f"p{n}", seed=n) for n in range(5)]
    sampler = _sampler(draft, batch=4, shard=4)
    with pytest.raises(
        UnderstudyError, match=r"^generate\.batch = 4: out of memory; 2 fits: set generate\.batch to 2 "
    ):
        sampler.sample(draft, prompts, 9, tmp_path)
    assert [[2, 3, 4, 5], [5, 6]] == asked
    assert [] == list(tmp_path.iterdir())


def test_a_round_trains_on_its_own_and_the_targets_completions(tmp_path: Path) -> None:
    """A prompt with several completions is sampled once per round; every round samples anew, with its own steps and
    learning rate."""
    from pipeline.config.distill import DistillConfig, OnPolicyConfig
    from pipeline.distillation.on_policy import run_rounds
    from tests.fakes import stored_completion

    train = [stored_completion([3, 4], [5, 6], name=f"p{n // 2}", seed=n) for n in range(20)]
    settings = DistillConfig(
        learning_rate=1.0, max_steps=50, on_policy=OnPolicyConfig(rounds=2, prompts=8, max_steps=7, learning_rate=0.5)
    )
    asked: list[list[str]] = []
    learnt: list[tuple[int, int, float, int, str]] = []

    def write(prompts: Any, seed: int, out: Path) -> list[StoredCompletion]:
        asked.append([item.id for item in prompts])
        assert out.parent.parent == tmp_path
        return list(prompts)

    def learn(rows: Any, later: DistillConfig, seed: int, work: Path) -> list[dict[str, float]]:
        learnt.append((len(rows), later.max_steps, later.learning_rate, seed, work.name))
        return [{"step": float(later.max_steps)}]

    logs = list(run_rounds(train, settings, 5, tmp_path, write, learn))

    assert [(16, 7, 0.5, 6, "round-1"), (16, 7, 0.5, 7, "round-2")] == learnt
    assert [8, 8] == [len(set(ids)) for ids in asked]
    assert asked[0] != asked[1]
    assert [[{"step": 7.0}]] * 2 == logs

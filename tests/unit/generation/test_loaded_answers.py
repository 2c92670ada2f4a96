"""Recorded answers of a log with a target that is loaded here: scored, not generated, and tested."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.corpus.prompt_store import Prompt
from pipeline.errors import UnderstudyError
from pipeline.generation import generate, loaded_answers
from pipeline.generation.completion_plan import CompletionRequest, plan_completions, shards_of
from pipeline.generation.completion_store import StoredCompletion, read_completions, shard_exists
from pipeline.generation.distributions import unpack
from pipeline.generation.generate import GenerationSettings
from pipeline.generation.logged import LoggedCompletion
from pipeline.generation.sample_test import StoredShards, stored_test
from pipeline.generation.shard_worker import Shard
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import generation_settings, numbered_prompt, tiny_llama
from tests.unit.generation.shards import VOCABULARY, open_model, shard_work

AHEAD = 3
SAMPLINGS = [Sampling(), GREEDY, Sampling(0.7, top_k=6), Sampling(0.8, top_p=0.7), Sampling(0.9, min_p=0.1)]
SPLITS = ["examination", "examination", "train", "train", "train"]
Answers = dict[str, LoggedCompletion]


@pytest.fixture(scope="module")
def models() -> list[Any]:
    """The target, and what it was before a re-training."""
    return [tiny_llama(seed, layers=1, dtype=torch.float32) for seed in (1, 2)]


@pytest.fixture
def settings() -> GenerationSettings:
    return generation_settings(sampling=Sampling(), lookahead=AHEAD, batch=8, shard=8)


def _prompts(count: int, split: str = "train") -> list[Prompt]:
    generator = np.random.default_rng(0)
    return [numbered_prompt(n, generator.integers(2, VOCABULARY, 3 + n % 4).tolist(), split) for n in range(count)]


def _shards(prompts: list[Prompt], settings: GenerationSettings) -> list[tuple[str, Sequence[CompletionRequest]]]:
    plan = plan_completions(prompts, settings.sampling)
    return [(name, list(part)) for name, part in shards_of(plan, settings.shard, 1)]


def _make(model: Any, prompts: list[Prompt], settings: GenerationSettings, answers: Answers, out: Path) -> list[Any]:
    """All shards that are missing, tested as a stage does; returns the shards' test and the completions."""
    out.mkdir(exist_ok=True)
    stored, shards = StoredShards(out, VOCABULARY), _shards(prompts, settings)
    stored.expect(name for name, _ in shards)
    stored.look()
    make = open_model(shard_work(settings), model)
    for name, requests in shards:
        own = {number: item.prompt.id for number, item in enumerate(requests) if item.sampling == settings.sampling}
        used = {number: answers[prompt] for number, prompt in own.items() if prompt in answers}
        if not shard_exists(out, name):
            make(Shard(name, list(requests), used), out, lambda tokens: None)
        stored.look()
    return [item for item in read_completions(out) if item.sampling == settings.sampling]


def _as_log(items: Sequence[StoredCompletion], exact: bool = True) -> Answers:
    return {item.id: LoggedCompletion(item.tokens[: item.length].copy(), item.stopped, exact) for item in items}


@pytest.mark.parametrize(("sampling", "split"), list(zip(SAMPLINGS, SPLITS, strict=True)))
def test_recorded_answers_are_stored_as_generated_ones(
    models: list[Any], settings: GenerationSettings, tmp_path: Path, sampling: Sampling, split: str
) -> None:
    """Tokens, ends, log p and distributions are those of the generation that was recorded, at any sampling settings."""
    settings, prompts = replace(settings, sampling=sampling), _prompts(10, split)
    first = _make(models[0], prompts, settings, {}, tmp_path / "a")
    again = _make(models[0], prompts, settings, _as_log(first), tmp_path / "b")
    assert 10 == len(first) == len(again)
    for one, other in zip(first, again, strict=True):
        assert (one.id, one.length, one.stopped, one.split) == (other.id, other.length, other.stopped, other.split)
        assert one.length + (AHEAD if split == "examination" else 0) == len(other.tokens) == len(one.tokens)
        kept = slice(one.length)
        assert one.tokens[kept].tolist() == other.tokens[kept].tolist()
        np.testing.assert_allclose(one.log_p[kept], other.log_p[kept], atol=1e-4)
        (ids, log_p), (same, near) = (unpack(x.entries, x.certain, x.rest_log_p, VOCABULARY) for x in (one, other))
        assert ids[kept].tolist() == same[kept].tolist()
        np.testing.assert_allclose(log_p[kept], near[kept], atol=2e-2)
        assert np.isfinite(other.log_p).all()
    assert 10 == stored_test(tmp_path / "b").recorded.completions


def test_only_what_is_not_recorded_is_generated(
    models: list[Any], settings: GenerationSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two answers of ten are missing, and a third has a token that the target does not choose: the target completes these."""
    settings, prompts = replace(settings, sampling=GREEDY), _prompts(10)
    first = _make(models[0], prompts, settings, {}, tmp_path / "a")
    log = _as_log(first)
    del log[prompts[2].id], log[prompts[7].id]
    likeliest = log[prompts[4].id].tokens_N
    log[prompts[4].id] = LoggedCompletion((likeliest + 5) % VOCABULARY, False, True)
    asked, complete = list[str](), generate._complete

    def counted(decoder: Any, requests: Sequence[CompletionRequest], settings: GenerationSettings) -> Any:
        asked.extend(item.prompt.id for item in requests)
        return complete(decoder, requests, settings)

    monkeypatch.setattr(generate, "_complete", counted)
    again = _make(models[0], prompts, settings, log, tmp_path / "b")
    assert sorted(prompts[number].id for number in (2, 4, 7)) == sorted(asked)
    assert [item.tokens.tolist() for item in first] == [item.tokens.tolist() for item in again]
    tested = stored_test(tmp_path / "b").recorded
    assert (8, 1) == (tested.completions, tested.impossible)


def test_an_interrupted_scoring_goes_on_with_equal_shards(
    models: list[Any], settings: GenerationSettings, tmp_path: Path
) -> None:
    """Finished shards stay, and the others are made with the same bytes."""
    prompts = _prompts(20, "examination")
    log = _as_log(_make(models[0], prompts, settings, {}, tmp_path / "a"))
    _make(models[0], prompts, settings, log, tmp_path / "b")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    for path in (tmp_path / "b").glob("shard-00001.*"):
        path.unlink()
    _make(models[0], prompts, settings, log, tmp_path / "b")
    assert whole == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (Sampling(), "the recorded answers (are not|do not begin like) samples of the target"),
        (Sampling(0.7, top_k=6), "recorded answers have tokens that the target does not choose"),
        (GREEDY, "recorded answers have tokens that the target does not choose"),
    ],
)
def test_a_log_of_other_weights_is_refused_early(
    models: list[Any], settings: GenerationSettings, tmp_path: Path, sampling: Sampling, said: str
) -> None:
    """After the first shards, whatever the order of their making, and again by what is stored, before anything is scored."""
    settings, prompts = replace(settings, sampling=sampling), _prompts(80)
    log = _as_log(_make(models[1], prompts, settings, {}, tmp_path / "a"))
    with pytest.raises(UnderstudyError, match=said) as caught:
        _make(models[0], prompts, settings, log, tmp_path / "b")
    assert "corpus.sources.N.since" in str(caught.value)
    there = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert 0 < len(there) < 2 * 10
    with pytest.raises(UnderstudyError, match=said):
        _make(models[0], prompts, settings, log, tmp_path / "b")
    assert there == sorted(path.name for path in (tmp_path / "b").iterdir())


def test_shards_are_tested_in_their_order(models: list[Any], settings: GenerationSettings, tmp_path: Path) -> None:
    """One that is made early waits for those before it: the error rate holds for one order."""
    prompts = _prompts(16)
    log = _as_log(_make(models[0], prompts, settings, {}, tmp_path / "a"))
    _make(models[0], prompts, settings, log, tmp_path / "b")
    stored, tested = StoredShards(tmp_path / "b", VOCABULARY), list[int]()
    stored.expect(["shard-00000", "shard-00001"])
    first = (tmp_path / "b" / "shard-00000.completions.arrow").rename(tmp_path / "away")
    for _ in range(2):
        stored.look()
        tested.append(stored._test.pooled.recorded.completions)
        if not tested[0] and first.exists():
            first.rename(tmp_path / "b" / "shard-00000.completions.arrow")
    assert [0, 16] == tested


def test_weights_without_finite_logits_are_an_error(
    settings: GenerationSettings, models: list[Any], tmp_path: Path
) -> None:
    """As in a generation: no answer is taken for impossible because log p is no number."""
    prompts, broken = _prompts(2), tiny_llama(1, layers=1, dtype=torch.float32)
    log = _as_log(_make(models[0], prompts, settings, {}, tmp_path / "a"))
    broken.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        _make(broken, prompts, settings, log, tmp_path / "b")


@pytest.mark.parametrize(
    ("sampling", "margin", "stored", "impossible"),
    [
        (GREEDY, -0.1, True, 0),
        (GREEDY, -1.0, False, 1),
        (Sampling(0.7, top_k=6), 0.0, True, 0),
        (Sampling(0.7, top_k=6), -0.1, False, 0),
        (Sampling(0.7, top_k=6), -1.0, False, 1),
    ],
)
def test_a_token_that_rounding_explains_is_no_evidence_against_a_log(
    monkeypatch: pytest.MonkeyPatch, settings: GenerationSettings, sampling: Sampling, margin: float,
    stored: bool, impossible: int,
) -> None:  # fmt: skip
    """Another batch in bfloat16 chose the other one of two likeliest tokens, which is as certain as the likeliest, or one just
    below a cut-off, which has no log p: it is generated again. Further off it is not of this target."""
    columns = {
        "margin": np.array([0.0, margin], dtype=np.float32),
        "log_p": np.array([-0.1, -np.inf], dtype=np.float32),
    }
    columns |= {name: np.zeros((2, 3)) for name in ("entries", "certain", "rest_log_p")}
    columns |= {"listed_ids": np.array([[4, 5], [4, 5]]), "listed_log_p": np.log(np.full((2, 2), 0.5))}
    monkeypatch.setattr(loaded_answers, "score_rows", lambda *_: iter([(0, columns)]))
    settings = replace(settings, sampling=sampling, lookahead=0)
    answer = LoggedCompletion(np.array([4, 5], dtype=np.int32), True, True)
    request = CompletionRequest(_prompts(1)[0], sampling)
    found, tested = loaded_answers.complete_recorded(None, [request], {0: answer}, settings, VOCABULARY, 40)

    assert stored is (0 in found)
    assert impossible == tested[0].recorded.impossible
    assert stored + impossible == tested[0].recorded.completions
    if sampling.greedy and stored:
        assert [0.0, 0.0] == found[0].log_p.tolist()


def test_what_follows_an_answer_has_random_numbers_of_its_own(
    monkeypatch: pytest.MonkeyPatch, settings: GenerationSettings
) -> None:
    """With those of the answer, its first tokens would come again where the target is as sure."""
    seeds, request = list[int](), CompletionRequest(_prompts(1)[0], Sampling())

    class Asked(Exception): ...

    def ask(tokens: Any, limit: int, seed: int, *rest: Any) -> Any:
        seeds.append(seed)
        raise Asked

    monkeypatch.setattr(generate, "Request", ask)
    monkeypatch.setattr(generate, "Decoder", lambda *_, **__: None)
    with pytest.raises(Asked):
        generate.generate_past_end(None, [request], [list(request.prompt.tokens)], settings, VOCABULARY)

    assert 1 == len(seeds)
    assert generate.seed_of(settings, request) not in seeds

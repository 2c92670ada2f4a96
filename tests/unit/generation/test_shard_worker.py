"""A worker of shards: what cannot fit is refused before the target is loaded, and a batch without memory is named."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import UnderstudyError, UsageError
from pipeline.generation import generate, shard_worker
from pipeline.generation.completion_plan import CompletionRequest
from pipeline.generation.shard_worker import Shard, ShardWork, open_target
from pipeline.models import memory_plan
from pipeline.speculation.forward import CachedModel
from pipeline.speculation.settings import Sampling
from tests.fakes import generation_settings, numbered_prompt, tiny_llama
from tests.unit.generation.shards import shard_work


def _work(target: Path) -> ShardWork:
    settings = generation_settings(sampling=Sampling(), batch=4, max_new_tokens=20)
    return shard_work(settings, target=target, completions=4, stop_tokens=[], batch_tokens=8192)


def _shard() -> Shard:
    prompts = [numbered_prompt(number, (1, 2, number)) for number in range(4)]
    return Shard("shard-00000", [CompletionRequest(prompt, Sampling()) for prompt in prompts])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    tiny_llama(1, dtype=torch.float32).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_a_batch_that_cannot_fit_is_refused_before_the_target_is_loaded(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches for the longest prompt with its completion, as many as are decoded at once."""
    weights = memory_plan._weights(target, "float32", False)
    monkeypatch.setattr(memory_plan, "_free_on", lambda place: weights + 2 * (50 * 2 * 2 * 8 * 4 + 32 * 8) + 9)
    monkeypatch.setattr(shard_worker, "load_model", lambda *_: pytest.fail("loaded"))
    with pytest.raises(
        UsageError, match=r"generate\.batch = 4: .*KV caches of 4 x 50 tokens .* set generate\.batch to 2 or"
    ):
        open_target(_work(target), "cpu")


def test_a_batch_without_memory_is_named_with_one_that_fits(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the config key; nothing of the shard is written."""
    own = CachedModel.__init__

    def limited(self: CachedModel, model: Any, rows: int, *rest: Any) -> None:
        if rows > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        own(self, model, rows, *rest)

    make = open_target(_work(target), "cpu")
    make(_shard(), tmp_path, lambda tokens: None)
    written = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(CachedModel, "__init__", limited)
    with pytest.raises(UnderstudyError, match=r"^generate\.batch = 4: out of memory; 1 fits: set generate\.batch to 1"):
        make(Shard("shard-00001", _shard().requests), tmp_path, lambda tokens: None)
    assert written == sorted(path.name for path in tmp_path.iterdir())


def test_a_shard_that_is_smaller_than_a_batch_needs_less(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned is what is decoded at once."""
    weights = memory_plan._weights(target, "float32", False)
    monkeypatch.setattr(memory_plan, "_free_on", lambda place: weights + 2 * (50 * 2 * 2 * 8 * 4 + 32 * 8) + 9)
    open_target(replace(_work(target), completions=2), "cpu")
    with pytest.raises(UsageError, match=r"generate\.batch = 3: "):
        open_target(replace(_work(target), completions=3), "cpu")


def test_a_target_over_several_devices_is_planned_and_loaded_as_one(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is that of all of them."""
    maps = list[Any]()
    monkeypatch.setattr(shard_worker, "require_memory", lambda path, dtype, place, map, *_: maps.append(map))
    monkeypatch.setattr(shard_worker, "load_model", lambda path, dtype, place, trusted, map: maps.append(map))
    open_target(replace(_work(target), device_map="auto"), "cpu")
    assert ["auto", "auto"] == maps


@pytest.mark.parametrize(("longest", "prefill"), [(9, 9), (700, 512)])
def test_what_is_tried_is_the_end_of_the_longest_completions(
    longest: int, prefill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches as long as they become, the tokens past the end included; prompts are processed in pieces, as they are."""
    found, pieces = list[tuple[int, int]](), list[int]()

    def complete(decoder: Any, requests: Any, settings: Any) -> None:
        pieces.append(decoder.prefill)
        found.extend((len(item.prompt.tokens), settings.max_new_tokens + settings.lookahead) for item in requests)

    monkeypatch.setattr(generate, "PREFILL", 512)
    monkeypatch.setattr(generate, "Decoder", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr(generate, "_complete", complete)
    requests = [
        replace(one, prompt=replace(one.prompt, tokens=(1, 2) * count))
        for one, count in zip(_shard().requests, [1, 3, 2, 1], strict=True)
    ]
    requests[1] = replace(requests[1], prompt=replace(requests[1].prompt, tokens=tuple(range(longest))))
    settings = generation_settings(sampling=Sampling(), max_new_tokens=20, lookahead=5)
    generate.attempt_batch(None, requests, settings, 32, [])(2)

    assert [(longest + 23, 2), (4 + 23, 2)] == found
    assert [prefill] == pieces

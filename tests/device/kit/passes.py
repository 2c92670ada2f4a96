"""Part 4: examination at a vocabulary of 152,000 tokens, and generation with its stored distributions against `generate`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from pipeline.config.evaluate import EvaluateConfig
from pipeline.drafts.plain import PlainDraft
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.generate import generate_completions
from pipeline.models.devices import synchronize
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from tests.device.kit.models import Setup, parameters
from tests.device.kit.training import completions, peak_memory, peaks_of, reset_peak
from tests.fakes import generation_settings, numbered_prompt

REPEATS = 3


def measures(setup: Setup) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for name in ("Qwen3-0.6B", "Qwen3-1.7B"):
        yield f"examination of {name}", lambda name=name: _examination(setup, name)
    for batch in (32, 128):
        yield f"generation by Qwen3-8B, batch {batch}", lambda batch=batch: _generation(setup, "Qwen3-8B", batch)


def tokens_a_second(setup: Setup, run: Callable[[], int]) -> float:
    """Tokens a second, after one call that is left out."""
    speeds = []
    for number in range(REPEATS + 1):
        began = time.perf_counter()
        tokens = run()
        synchronize(setup.device)
        if number:
            speeds.append(tokens / (time.perf_counter() - began))
    return float(np.median(speeds))


def examination(setup: Setup, draft: LoadedDraft, name: str, settings: EvaluateConfig) -> dict[str, Any]:
    """Tokens a second, and peak memory. `name`: the shape whose vocabulary the rows have."""
    rows, examiner = completions(setup, name), Examiner(Sampling(), settings)

    def run() -> int:
        list(examiner.counts(draft, rows))
        return sum(len(row.prompt) + len(row.tokens) for row in rows)

    reset_peak(setup)
    return {"tokens_per_second": tokens_a_second(setup, run), **peak_memory(setup)}


def _examination(setup: Setup, name: str) -> dict[str, Any]:
    draft = PlainDraft(setup.model(name), setup.vocabulary(name))
    found: dict[str, Any] = {"vocabulary": setup.vocabulary(name), **examination(setup, draft, name, EvaluateConfig())}
    speed, weights = found["tokens_per_second"], parameters(draft.model)
    if (peaks := peaks_of(setup)) is not None:
        found["share_of_peak"] = 2 * weights * speed / peaks[0]
    return found


def _generation(setup: Setup, name: str, batch: int) -> dict[str, Any]:
    """Of new tokens. The limit by memory bandwidth: each step reads the weights once."""
    model, vocabulary = setup.model(name), setup.vocabulary(name)
    tokens, generator = setup.size(128, 8), np.random.default_rng(0)
    settings = generation_settings(
        sampling=Sampling(), max_new_tokens=tokens, distribution_tokens=64, batch=batch, shard=batch, seed=0
    )
    ids = [tuple(generator.integers(2, vocabulary, 128).tolist()) for _ in range(batch)]
    prompts = [numbered_prompt(number, own) for number, own in enumerate(ids)]
    requests = list(plan_completions(prompts, Sampling()))

    def ours() -> int:
        generate_completions(model, requests, settings, vocabulary, [], lambda done: None)
        return batch * tokens

    def theirs() -> int:
        ids_BT = torch.tensor(ids, device=setup.device)
        options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
        model.generate(
            ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=tokens, min_new_tokens=tokens, **options
        )
        return batch * tokens

    reset_peak(setup)
    found = {"tokens_per_second": tokens_a_second(setup, ours), **peak_memory(setup)}
    found["generate_tokens_per_second"] = tokens_a_second(setup, theirs)
    found["over_generate"] = found["tokens_per_second"] / found["generate_tokens_per_second"]
    if (peaks := peaks_of(setup)) is not None:
        found["limit_by_bandwidth"] = batch * peaks[1] / (2 * parameters(model))
    return found

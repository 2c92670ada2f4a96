"""The generate stage against model.generate: the same target, prompts, batch and length; ours also stores distributions."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

DTYPES, BATCHES, NEW_TOKENS, TURNS = (torch.bfloat16, torch.float32), (32, 64, 128), 96, 5


def measure_generation() -> Mapping[str, Any]:
    """Tokens a second by dtype and batch, turns taken within one run."""
    from tests.benchmarks.distillation.data import find_regime

    regime = find_regime("near")
    target, prompts = regime.load(regime.target), _prompts(regime)
    found = {}
    for dtype in DTYPES:
        model = target.to(dtype)
        for batch in BATCHES:
            some = prompts[:batch]
            turns = [(_ours(model, regime, some, batch, turn), _theirs(model, some)) for turn in range(TURNS + 1)][1:]
            found[f"{str(dtype).removeprefix('torch.')}, batch {batch}"] = {
                "ours": median(ours for ours, _ in turns),
                "model_generate": median(theirs for _, theirs in turns),
                "ratio": median(ours / theirs for ours, theirs in turns),
            }
    return found


def _prompts(regime: Any) -> list[Any]:
    """Those of the train split, each once, of mixed lengths."""
    return list({item.id: item for item in regime.read("train")}.values())


def _ours(target: Any, regime: Any, some: list[Any], batch: int, turn: int) -> float:
    """Up to the last shard on disk. No stop tokens, so that both write as many tokens."""
    from pipeline.generation.completion_plan import plan_completions
    from pipeline.generation.generate import generate
    from pipeline.speculation.settings import Sampling
    from tests.fakes import generation_settings, numbered_prompt, quiet

    prompts = [numbered_prompt(int(item.id, 16), item.prompt.tolist()) for item in some]  # ids are digests
    config = regime.config.generate
    settings = generation_settings(
        sampling=Sampling(),
        max_new_tokens=NEW_TOKENS,
        distribution_tokens=config.stored_tokens,
        distribution_selection=config.distribution_selection,
        batch=batch,
        shard=batch,
        seed=turn,
    )
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        requests = plan_completions(prompts, Sampling())
        generate(target, requests, settings, regime.vocabulary, [], Path(out), quiet())
        return len(some) * NEW_TOKENS / (time.perf_counter() - began)


@torch.inference_mode()
def _theirs(target: Any, some: list[Any]) -> float:
    """Left-padded, sampled at temperature 1, text alone."""
    width = max(len(item.prompt) for item in some)
    ids_BT = torch.zeros(len(some), width, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for row, item in enumerate(some):
        ids_BT[row, width - len(item.prompt) :] = torch.from_numpy(item.prompt.astype("int64"))
        mask_BT[row, width - len(item.prompt) :] = 1
    began = time.perf_counter()
    said_BT = target.generate(
        input_ids=ids_BT,
        attention_mask=mask_BT,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert said_BT.shape[1] == width + NEW_TOKENS
    return len(some) * NEW_TOKENS / (time.perf_counter() - began)

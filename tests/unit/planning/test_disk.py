"""Bytes of each job without an earlier run, computed by hand."""

from pathlib import Path

import pytest

from pipeline.config.loading import load_config
from pipeline.planning.disk import disk_of
from pipeline.planning.work import Amounts, work_of

CONFIG = Path(__file__).parents[3] / "configs" / "qwen3-8b.yaml"
AMOUNTS = Amounts(
    rows=1_000,
    prompts={"train": 600.0, "dev": 100.0, "examination": 300.0},
    prompt_tokens=400.0,
    completion_tokens=350.0,
    longest_prompt=2_000.0,
)
PARAMETERS = 1e9


def _disk(job: str, *settings: str) -> tuple[float | None, float]:
    config = load_config(CONFIG, settings)
    found = disk_of(job, work_of(config, AMOUNTS)[job], config, AMOUNTS, None, PARAMETERS)
    return found.stored, found.scratch


@pytest.mark.parametrize(
    ("job", "completions", "tokens"),
    [("generate", 1_300, 1_300 * 350 + 600 * 16), ("generate/before", 600, 600 * 366)],
)
def test_completions_by_their_tokens(job: str, completions: int, tokens: int) -> None:
    """A token is 11 bytes, its kept probabilities 3 each, and its segment one. Those before a fine-tune are of examination
    prompts only."""
    settings = ("generate.distribution_tokens=50", "generate.lookahead=16", "pair.target_before={source: ./before}")

    assert (tokens * (11 + 3 * 50 + 1) + completions * 270, 0.0) == _disk(job, *settings)


def test_rows_are_on_the_disk_twice_while_duplicates_are_sought() -> None:
    stored = 1_000 * (400 * 4 + 110)

    assert (stored, stored) == _disk("corpus")


def test_an_examination_by_its_prompts_and_tokens() -> None:
    """600 completions: their counts at each draft length, and a_t of their tokens in half precision."""
    assert (600 * (250 + 12 * 110 + 2 * 350), 0.0) == _disk("evaluate/base", "evaluate.max_gamma=12")


@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_a_draft_and_its_checkpoints(dtype: str, width: int) -> None:
    """Three checkpoints of weights and two moments in float32, and the best weights twice; of adapters hardly anything."""
    stored = width * 1e9 + 44 * 600
    settings = (f"pair.draft.dtype={dtype}",)

    assert (stored, 1e9 * (3 * 12 + 2 * 4)) == _disk("distill", *settings)
    assert (stored, 0.0) == _disk("distill", *settings, "distill.lora={rank: 8}")
    assert (2e9 + 44 * 600, 0.0) == _disk("quantize/int8", *settings)

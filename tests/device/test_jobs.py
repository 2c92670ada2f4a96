"""What stages do on the device: completions, examinations, the cross-check and a profile are the CPU's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.acceptance.profile import PromptCounts
from pipeline.config.evaluate import EvaluateConfig
from pipeline.corpus.prompt_store import Prompt
from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UsageError
from pipeline.examination.cross_check import cross_check
from pipeline.examination.examiner import Examiner
from pipeline.generation.completion_plan import plan_completions
from pipeline.generation.completion_store import StoredCompletion, read_completions
from pipeline.generation.generate import generate
from pipeline.generation.scoring import DraftCompletion, score
from pipeline.latency.costs.measure import Grid, measure_profile
from pipeline.models.devices import download, upload
from pipeline.models.loading import load_model
from pipeline.models.saving import save_model
from pipeline.speculation.settings import GREEDY, Sampling
from tests.device.on_device import CLOSE, DEVICE, ON_GPU, there, waits
from tests.fakes import (
    generation_settings,
    numbered_prompt,
    quiet,
    saved_tiny_llama,
    tiny_llama,
    tiny_pair,
    tiny_tokenizer,
)

VOCABULARY = 32
SAMPLED = Sampling(0.9, top_k=20)


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return tiny_pair(0, 0.05)


def _prompts(count: int) -> list[Prompt]:
    generator = np.random.default_rng(0)
    return [
        numbered_prompt(
            number, generator.integers(2, 32, 3 + number % 5).tolist(), ("train", "examination")[number % 2]
        )
        for number in range(count)
    ]


def _generated(
    model: Any, out: Path, sampling: Sampling, count: int = 8, tokens: int = 24, stop_tokens: Sequence[int] = (0,)
) -> list[StoredCompletion]:
    out.mkdir()
    settings = generation_settings(sampling=sampling, lookahead=3, max_new_tokens=tokens, batch=4, shard=4)
    generate(model, plan_completions(_prompts(count), sampling), settings, VOCABULARY, stop_tokens, out, quiet())
    return list(read_completions(out))


@pytest.mark.parametrize("sampling", [SAMPLED, Sampling(), GREEDY], ids=["filtered", "sampled", "greedy"])
def test_completions_are_those_of_the_cpu(pair: tuple[Any, Any], tmp_path: Path, sampling: Sampling) -> None:
    """Tokens equal, and what is stored of the distributions too, but for the last digit of a rounded number: more of them on a
    GPU, whose sums have another order."""
    here = _generated(pair[0], tmp_path / "here", sampling)
    over_there = _generated(there(pair[0]), tmp_path / "there", sampling)

    assert len(here) == len(over_there) >= 8
    for one, other in zip(here, over_there, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.log_p, other.log_p, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(one.certain, other.certain)
        np.testing.assert_allclose(one.rest_log_p, other.rest_log_p, rtol=2e-3, atol=2e-3)
        assert (one.entries == other.entries).mean() > (0.95 if ON_GPU else 0.99)


def test_sampled_generation_waits_twice_a_token(tmp_path: Path) -> None:
    """For the token, and for what is stored of its distribution. What begins a shard is left out by a longer generation."""
    model, counts = there(tiny_llama(3, dtype=torch.float32)), list[int]()
    for tokens in (16, 48):
        with waits() as waited:
            _generated(model, tmp_path / str(tokens), Sampling(), 4, tokens, stop_tokens=[])
        counts.append(waited.total)
    rounds = 2 * (48 - 16)  # of two shards, one for each sampling

    assert rounds < counts[1] - counts[0] <= 2 * rounds


def test_examination_and_cross_check_are_those_of_the_cpu(pair: tuple[Any, Any], tmp_path: Path) -> None:
    rows = _generated(pair[0], tmp_path / "rows", GREEDY)
    settings = EvaluateConfig(max_gamma=5, gamma=3, crosscheck_gamma=3, crosscheck_tokens=20)
    for sampling in (Sampling(), GREEDY):
        examiner = Examiner(sampling, settings)
        here, over_there = (
            [item for window in examiner.counts(PlainDraft(draft, VOCABULARY), rows) for item in window]
            for draft in (pair[1], there(pair[1]))
        )
        assert _figures(over_there) == pytest.approx(_figures(here), rel=1e-5)
    greedy = [row for row in rows if row.sampling == GREEDY]
    found = cross_check(there(pair[0]), PlainDraft(there(pair[1]), VOCABULARY), greedy, settings, [0])
    assert found.agrees
    assert found.rounds_predicted == found.rounds_decoded


def _figures(counts: list[PromptCounts]) -> list[float]:
    return [figure for item in counts for figure in (item.accepted, *item.rounds)]


def test_scored_completions_are_those_of_the_cpu(pair: tuple[Any, Any]) -> None:
    """Of prompts and recorded answers."""
    generator = np.random.default_rng(1)
    rows = [
        DraftCompletion(
            **dict.fromkeys(["id", "text_id", "conversation"], f"p{number}"),
            split="train",
            domain="code",
            prompt=generator.integers(2, 32, 5).astype(np.int32),
            tokens=generator.integers(2, 32, 7 + number).astype(np.int32),
            stopped=False,
            seed=number,
        )
        for number in range(3)
    ]
    here, over_there = (
        score(model, rows, Sampling(), 4, "sampled", VOCABULARY, 64) for model in (pair[0], there(pair[0]))
    )
    for one, other in zip(here, over_there, strict=True):
        np.testing.assert_allclose(one.log_p, other.log_p, rtol=1e-5, atol=1e-5)


def test_a_profile_is_measured_there(pair: tuple[Any, Any]) -> None:
    """Synchronised: a pass has ended when its time is taken."""
    models = [there(model.float()) for model in tiny_pair(1, 0.1)]
    found = measure_profile(
        *models,
        VOCABULARY,
        Grid(batches=(1, 2), gammas=2, contexts=(4,), prompts=(3, 6), repeats=1),
        about={},
        progress=quiet(),
    )
    assert found.about["device"].startswith(DEVICE.type)
    assert (found.steps(2, 6) > 0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_loaded_there_and_saved(tmp_path: Path, dtype: str) -> None:
    """With tied weights, which stay one tensor."""
    place = saved_tiny_llama(tmp_path / "model")
    here = load_model(place, dtype, torch.device("cpu"))
    here.config.tie_word_embeddings = True
    here.tie_weights()
    save_model(here, tmp_path / "tied", (), None)
    tiny_tokenizer().save_pretrained(tmp_path / "tied")
    model = load_model(tmp_path / "tied", dtype, DEVICE)

    assert {DEVICE} == {weight.device for weight in model.parameters()}
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    save_model(model, tmp_path / "again", (), None)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "tied" / "model.safetensors"
    ).read_bytes()


def test_a_target_in_two_places_is_decoded(tmp_path: Path) -> None:
    """Half of it in host memory, by its device map: its own forward moves what has to be moved."""
    place = saved_tiny_llama(tmp_path / "model")
    here: Any = 0 if ON_GPU else str(DEVICE)
    names = dict.fromkeys(["model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.norm", "lm_head"], here)
    placed = load_model(place, "float32", DEVICE, device_map={**names, "model.layers.1": "cpu"})
    whole = load_model(place, "float32", torch.device("cpu"))
    ids_BT = torch.arange(12).view(1, -1)
    with torch.inference_mode():
        found, expected = placed(ids_BT.to(DEVICE)).logits.cpu(), whole(ids_BT).logits
    assert float((found - expected).abs().max()) < CLOSE[torch.float32]


def test_what_goes_there_comes_back() -> None:
    """In one copy, whatever the dtypes and shapes."""
    sent = [torch.arange(3, dtype=torch.uint8), torch.randn(2, 3).double(), torch.randn(5).half(), torch.arange(4) > 1]
    with waits() as waited:
        found = download(*[upload(one, DEVICE) for one in sent])
    assert waited.total <= 1, waited
    for one, other in zip(sent, found, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)


def test_a_device_that_is_not_there_is_refused() -> None:
    from pipeline.models.devices import choose_device

    assert choose_device("auto").type == DEVICE.type
    if not ON_GPU:
        with pytest.raises(UsageError, match="torch sees no GPU here"):
            choose_device("cuda")

"""Forwards and decoder: the CPU's tokens, and one wait a round."""

import itertools
from typing import Any

import pytest
import torch

from pipeline.drafts.lookup import PromptLookup
from pipeline.drafts.plain import PlainDraft
from pipeline.drafts.suffix import SuffixMatching, SuffixSettings
from pipeline.errors import UnderstudyError, UsageError
from pipeline.speculation.batch import Completion, Request, Round
from pipeline.speculation.choice import choose_forward, proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.draft_length import Confident, DraftLength
from pipeline.speculation.proof import plain_pass
from pipeline.speculation.settings import GREEDY, Sampling
from tests.architectures import FAMILIES, tiny_model
from tests.device.on_device import CLOSE, DEVICE, ON_GPU, Waits, there, waits
from tests.fakes import largest_gap, tiny_llama, tiny_pair

VOCABULARY = 32
SAMPLINGS = {"sampled": Sampling(), "greedy": GREEDY, "filtered": Sampling(temperature=0.7, top_k=20, top_p=0.9)}
# Of the operators of a round: sums and draws that decide a token. Cheap on a card for servers, slow on one for games.
_DRAWS = {"sum", "cumsum", "mul", "sub", "minimum", "nextafter", "searchsorted", "gather", "where"}
_DRAWS |= {"zero_", "fill_", "cat", "lt"}
FLOAT64 = {"greedy": set[str](), "sampled": _DRAWS, "filtered": _DRAWS}

Pair = tuple[Any, Any]


@pytest.fixture(scope="module")
def pair() -> Pair:
    """In fp64, so that no rounding changes a token; over a one-layer target the draft accepts and rejects."""
    return tiny_pair(0, 0.02)


@pytest.fixture(scope="module")
def pair_there(pair: Pair) -> Pair:
    return there(pair[0]), there(pair[1])


def _requests(count: int, limit: int = 40) -> list[Request]:
    """Of unequal lengths, so that rows end where others go on."""
    generator = torch.Generator().manual_seed(count)
    lengths = [3 + 5 * number % 11 for number in range(count)]
    return [
        Request(torch.randint(VOCABULARY, (length,), generator=generator).tolist(), limit - number % 3, number)
        for number, length in enumerate(lengths)
    ]


def _decode(
    pair: Pair, requests: list[Request], sampling: Sampling, gamma: int | DraftLength, llama_forward: bool = True
) -> tuple[list[Completion], int, Waits]:
    """Completions, rounds and what the host waited for, after decodes that are left out: one of its kind where passes are
    recorded when they come again."""
    rounds = list[Round]()
    decoder = Decoder(
        pair[0],
        PlainDraft(pair[1], VOCABULARY, llama_forward) if gamma != 0 else None,
        sampling=sampling,
        vocabulary=VOCABULARY,
        gamma=gamma,
        llama_forward=llama_forward,
    )
    for _ in range(2):
        decoder.decode(requests if ON_GPU else requests[:1])
    with waits() as waited:
        completions = decoder.decode(requests, rounds.append)
    return completions, len(rounds), waited


@pytest.mark.parametrize("llama_forward", [True, False], ids=["llama", "batch"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("batch", "gamma"), list(itertools.product([1, 8], [0, 1, 5])))
def test_a_decode_has_the_tokens_of_the_cpu_and_waits_once_a_round(
    pair: Pair, pair_there: Pair, sampling: str, batch: int, gamma: int, llama_forward: bool
) -> None:
    """Beside one wait a round there are those of the prompts, and the end of their passes."""
    requests = _requests(batch)
    expected, _, _ = _decode(pair, requests, SAMPLINGS[sampling], gamma, llama_forward)
    completions, rounds, waited = _decode(pair_there, requests, SAMPLINGS[sampling], gamma, llama_forward)

    assert expected == completions
    assert rounds > 5
    assert waited.total <= rounds + 2, waited


@pytest.mark.skipif(ON_GPU, reason="torch does not say what a GPU computed in")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_only_sums_and_draws_are_computed_in_float64(sampling: str) -> None:
    """Of a pair in fp32: what draws a token by its own random number, whatever the rest of the batch."""
    pair = there(tiny_llama(1, layers=1, dtype=torch.float32)), there(tiny_llama(2, layers=1, dtype=torch.float32))
    _, _, waited = _decode(pair, _requests(4), SAMPLINGS[sampling], 3)

    assert {name.removeprefix("aten::") for name in waited.float64} == FLOAT64[sampling]


@pytest.mark.parametrize("batch", [1, 8])
def test_a_rule_that_stops_drafting_waits_once_more_a_token(pair: Pair, pair_there: Pair, batch: int) -> None:
    """It decides on the host whether the draft goes on."""
    requests, rule = _requests(batch), Confident(5, 0.1)
    expected, _, _ = _decode(pair, requests, Sampling(), rule)
    completions, rounds, waited = _decode(pair_there, requests, Sampling(), rule)

    assert expected == completions
    assert rounds + 2 < waited.total <= 5 * rounds + 2, waited


@pytest.mark.parametrize("draft", [PromptLookup(2), SuffixMatching(SuffixSettings())], ids=["lookup", "suffix"])
def test_a_draft_without_a_model_waits_once_a_round(pair: Pair, pair_there: Pair, draft: Any) -> None:
    requests, rounds = _requests(8), list[Round]()
    options: dict[str, Any] = {"sampling": GREEDY, "vocabulary": VOCABULARY, "gamma": 4}
    expected = Decoder(pair[0], draft, **options).decode(requests)
    with waits() as waited:
        found = Decoder(pair_there[0], draft, **options).decode(requests, rounds.append)

    assert expected == found
    assert waited.total <= len(rounds) + 8, waited  # with the proof of the forward


@pytest.mark.parametrize("verification", ["token", "block"])
def test_verification_of_blocks_and_other_temperatures(pair: Pair, pair_there: Pair, verification: Any) -> None:
    options: dict[str, Any] = {
        "sampling": Sampling(temperature=0.8),
        "draft_sampling": Sampling(temperature=1.2),
        "verification": verification,
        "vocabulary": VOCABULARY,
        "gamma": 4,
    }
    here, over_there = (
        Decoder(target, PlainDraft(draft, VOCABULARY), **options).decode(_requests(5))
        for target, draft in (pair, pair_there)
    )
    assert here == over_there


def test_the_phases_of_a_round_are_the_device_s(pair_there: Pair) -> None:
    """Not the time in which the host asked for them."""
    (completion,), _, _ = _decode(pair_there, _requests(1), Sampling(), 5)
    seconds = completion.seconds

    assert min(seconds.prefill, seconds.draft, seconds.verify) > 0
    assert seconds.draft + seconds.verify <= seconds.total


def test_logits_that_are_no_numbers_are_refused_there_too(pair: Pair) -> None:
    target = there(pair[0])
    assert proved_way(target, VOCABULARY)  # which a broken model would fail
    with torch.no_grad():
        target.lm_head.weight[0] = torch.nan
    decoder = Decoder(target, None, sampling=Sampling(), vocabulary=VOCABULARY)
    with pytest.raises(UnderstudyError, match="NaN or infinite logits"):
        decoder.decode(_requests(2))


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_computed_as_on_the_cpu(family: str) -> None:
    """By the same way, which is proved there against the device's own single passes; these are the CPU's within arithmetic."""
    model = tiny_model(family)
    vocabulary = model.config.get_text_config().vocab_size
    moved = there(model)
    way = _way(model, vocabulary)

    ours = "graphs" if ON_GPU else "llama"
    assert {"compiled": ours, "llama": ours}.get(way, way) == _way(moved, vocabulary)
    if way != "none":
        text = [list(range(3, 23)), list(range(20, 0, -1))]
        gap = plain_pass(model, text, vocabulary) - plain_pass(moved, text, vocabulary).cpu()
        assert float(gap.abs().max()) < CLOSE[torch.float32]


def _way(model: Any, vocabulary: int) -> str:
    try:
        return proved_way(model, vocabulary)
    except UsageError:
        return "none"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_our_forward_is_the_model_s_in_both_dtypes(dtype: torch.dtype) -> None:
    """Three times: on a GPU passes are recorded and replayed."""
    model = tiny_llama(1, dtype=dtype)
    forward = choose_forward(there(model), VOCABULARY)
    for _ in range(3):
        assert largest_gap(model, forward, VOCABULARY) < CLOSE[dtype]


@pytest.mark.skipif(ON_GPU, reason="of the pretend device")
def test_the_pretend_device_refuses_what_a_gpu_refuses() -> None:
    """Otherwise these tests would show nothing."""
    on_host, on_device = torch.ones(3), torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"two devices|different devices|on another device"):
        on_host + on_device
    with pytest.raises((RuntimeError, TypeError)):
        on_device.numpy()
    with waits() as waited:
        assert on_device.sum().item() == 3
        on_device[on_device > 0].tolist()
        on_device.to("cpu")
        torch.ones(2).to(DEVICE)
        torch.ones(2).pin_memory().to(DEVICE, non_blocking=True)
    names = {line.split(",")[0] for line in waited.by_line}
    assert {"item", "copy to the host", "copy to the device"} <= names
    assert 1 == sum(count for line, count in waited.by_line.items() if line.startswith("copy to the device"))

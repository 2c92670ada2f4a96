"""Evidence that completions are not samples of the distributions that were reported with them, on distributions made here."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.evidence import (
    ALTERNATIVES,
    FALSE_ALARM,
    NO_EVIDENCE,
    ROUNDING,
    TEXT,
    CompletionEvidence,
    FirstToken,
    FirstTokens,
    findable_share,
    of_answer,
    of_tokens,
    power,
)
from pipeline.generation.sample_test import SampleEvidence, SampleTest, figures, passed

TOKENS, VOCABULARY, LISTED = 40, 60, 20
Change = Callable[[np.random.Generator, NDArray[np.float64]], NDArray[np.float64]]


def _softmax(logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    p_NV = np.exp(logits_NV - logits_NV.max(-1, keepdims=True))
    return np.asarray(p_NV / p_NV.sum(-1, keepdims=True))


def _answers(
    count: int, change: Change | None = None, listed: int = LISTED, tolerance: float = ROUNDING, seed: int = 0
) -> Iterator[CompletionEvidence]:
    """Of answers sampled from random distributions, after `change` of their logits."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        logits_NV = 2.5 * rng.standard_normal((TOKENS, VOCABULARY))
        p_NV, q_NV = _softmax(logits_NV), _softmax(logits_NV if change is None else change(rng, logits_NV))
        tokens_N = (q_NV.cumsum(1) > rng.random((TOKENS, 1))).argmax(1).astype(np.int32)
        ids_NK = np.argsort(-p_NV, axis=1)[:, :listed].astype(np.int32)
        log_p_NK = np.log(np.take_along_axis(p_NV, ids_NK, 1)).astype(np.float32)
        yield of_tokens(tokens_N, ids_NK, log_p_NK, tolerance)


def _run(found: Iterable[CompletionEvidence]) -> SampleTest:
    test = SampleTest(VOCABULARY)
    for place, one in enumerate(found):
        test.add(place, SampleEvidence(recorded=of_answer(True, True, one)))
    return test


def _noise(rng: np.random.Generator, logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    return logits_NV + 0.5 * rng.standard_normal(logits_NV.shape)


def _hotter(rng: np.random.Generator, logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    return logits_NV / 1.05


def _colder(rng: np.random.Generator, logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    return logits_NV * 1.05


def _other_opening(rng: np.random.Generator, logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([2.5 * rng.standard_normal((1, VOCABULARY)), logits_NV[1:]])


def _another_in_ten(rng: np.random.Generator, logits_NV: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2.5 * rng.standard_normal(logits_NV.shape) if rng.random() < 0.1 else logits_NV


@pytest.mark.parametrize("listed", [1, 8, VOCABULARY])
def test_every_product_has_mean_1(listed: int) -> None:
    """Summed over all tokens, also those that are not listed; no more than 1 with a tolerance. Of any alternative."""
    rng = np.random.default_rng(3)
    p_V = np.sort(_softmax(3.0 * rng.standard_normal((1, VOCABULARY)))[0])[::-1]
    ids_K, log_p_K = np.arange(listed, dtype=np.int32)[None], np.log(p_V[:listed]).astype(np.float32)[None]
    for tolerance in (0.0, 0.05):
        mean_C = np.zeros(len(ALTERNATIVES))
        for token in range(VOCABULARY):
            one = of_tokens(np.array([token], dtype=np.int32), ids_K, log_p_K, tolerance)
            mean_C += p_V[token] * np.exp(one.log_e_C)
        assert (mean_C < 1 + 1e-5).all()
        if not tolerance:
            assert np.ones(len(ALTERNATIVES)) == pytest.approx(mean_C, abs=1e-5)


@pytest.mark.parametrize("listed", [8, LISTED])
def test_samples_pass(listed: int) -> None:
    """400 answers, looked at after each. Chance of a false alarm: below 1 in 10,000 for each of the two."""
    test = _run(_answers(400, listed=listed))
    assert not test.pooled.recorded.refuted
    assert 400 == test.pooled.recorded.completions


@pytest.mark.parametrize(
    ("change", "most", "said"),
    [
        (_noise, 700, "tokens are less likely than samples"),
        (_hotter, 800, "tokens are less likely than samples"),
        (_colder, 800, "tokens are more likely than samples"),
        (_other_opening, 200, "the first 4 tokens are less likely than samples"),
        (_another_in_ten, 200, "in about 10% of them"),
    ],
)
def test_others_are_refused(change: Change, most: int, said: str) -> None:
    """Noise of every logit, other temperatures, answers to other prompts: all of them, from the first token only, or a tenth. The
    draws are fixed; the limits are about twice what is needed on average."""
    with pytest.raises(UnderstudyError, match="the recorded answers") as caught:
        _run(_answers(most, change, seed=1))
    assert said in str(caught.value)


def test_the_stated_power_is_what_the_test_has() -> None:
    """Temperatures that shift mean log p by what 200 answers are said to find: nine in ten such logs are refused, here 5 of 7
    at least. Chance of fewer: 3%, and the draws are fixed."""
    found = _run(_answers(200)).pooled.recorded
    finds = power(found)
    assert finds is not None
    variance = found.moments[0] / found.tokens
    changed = 1 / (1 - (finds.shift) / variance)
    refused = 0
    for seed in range(7):
        try:
            _run(_answers(200, lambda rng, logits_NV: logits_NV / changed, seed=100 + seed))
        except UnderstudyError:
            refused += 1
    assert refused >= 5


def test_power_grows_with_the_log() -> None:
    """By the square root of the number of answers, down to the tolerance for rounding."""
    few = _run(_answers(100)).pooled.recorded
    many = few
    for _ in range(99):
        many = many + few
    one, other = power(few), power(many)
    assert one is not None
    assert other is not None
    assert 7 < (one.shift - ROUNDING) / (other.shift - ROUNDING) < 13
    assert "100 answers of 40 tokens pass a test that refuses one right log in 10,000" in passed(few)
    assert {"recorded_findable_shift", "recorded_findable_kl_temperature", "recorded_findable_kl_noise"} == set(
        figures(few)
    )


def test_rounding_is_no_evidence() -> None:
    """A bias of mean log p of less than the tolerance, however many answers there are."""
    rng, places = np.random.default_rng(5), 10
    log_p_NK = np.log(_softmax(2.5 * rng.standard_normal((places, VOCABULARY)))).astype(np.float32)
    ids_NK = np.tile(np.arange(VOCABULARY, dtype=np.int32), (places, 1))
    p_NK = np.exp(log_p_NK.astype(np.float64))
    variance_N = (p_NK * log_p_NK**2).sum(1) - (p_NK * log_p_NK).sum(1) ** 2
    q_NK = _softmax(log_p_NK * (1 - 0.8 * TEXT / variance_N.mean()))  # mean log p is lower by 0.8 of the tolerance
    growth_C = np.zeros(len(ALTERNATIVES))
    for token in range(VOCABULARY):
        for place in range(places):
            at = slice(place, place + 1)
            one = of_tokens(np.array([token], dtype=np.int32), ids_NK[at], log_p_NK[at], TEXT)
            growth_C += q_NK[place, token] * one.log_e_C / places
    assert (growth_C <= 0).all()


def test_mixed_up_answers_are_found_by_their_first_tokens() -> None:
    """A fifth of the answers begin as the log does, not as their prompts ask for; in the others the prompt decides."""
    rng, first = np.random.default_rng(7), np.arange(400) % 8
    tokens = np.where(rng.random(400) < 0.2, rng.integers(0, 8, 400), first)

    def log_e(tokens: NDArray[np.int64]) -> float:
        seen, found = FirstTokens(), NO_EVIDENCE
        for token, wanted in zip(tokens, first, strict=True):
            p = 0.93 if token == wanted else 0.01
            found += seen.evidence(FirstToken(int(token), math.log(p)), VOCABULARY)
        return found.log_e

    assert log_e(first) < 0
    assert log_e(tokens) > -math.log(FALSE_ALARM)


@pytest.mark.parametrize("before", [[], [3], [3, 3, 5, 1, 3]])
def test_first_tokens_are_evidence_of_mean_one_whatever_came_before(before: list[int]) -> None:
    """Otherwise right logs would be refused more often than stated. Over a uniform distribution of 8 tokens."""
    products = []
    for token in range(8):
        seen = FirstTokens()
        for one in before:
            seen.evidence(FirstToken(one, 0.0), 8)
        products.append(np.exp(seen.evidence(FirstToken(token, -math.log(8)), 8).log_e_C))

    assert np.mean(products, axis=0) == pytest.approx(1.0)


def test_no_answer_alone_decides() -> None:
    """One whose first token is all but impossible, and one whose token the target cannot choose."""
    seen = FirstTokens()
    for _ in range(100):
        seen.evidence(FirstToken(3, 0.0), VOCABULARY)
    assert seen.evidence(FirstToken(3, -80.0), VOCABULARY).log_e < 3
    assert of_answer(False, True).log_e < 3


@pytest.mark.parametrize(
    ("possible", "impossible", "exact", "refused"),
    [
        *((99, 1, True, False), (980, 20, True, False), (200, 30, True, True), (4, 6, True, True)),
        *((80, 20, False, False), (110, 90, False, True), (2, 12, False, True)),
    ],
)
def test_answers_that_the_target_cannot_give(possible: int, impossible: int, exact: bool, refused: bool) -> None:
    """Up to 2% with token ids, and up to 20% of texts, which may be written with other tokens, are tolerated."""
    answers = [of_answer(True, exact)] * possible + [of_answer(False, exact)] * impossible
    found = sum(answers, start=NO_EVIDENCE)
    assert refused == found.refuted
    assert (possible + impossible, impossible) == (found.completions, found.impossible)


def test_what_a_log_at_temperature_0_can_show() -> None:
    """A log of the share that is said to be found is refused, and one of half of what exceeds the tolerance is not."""
    found = sum([of_answer(True, True)] * 300, start=NO_EVIDENCE)
    share = findable_share(found)
    assert {"recorded_findable_share": share} == figures(found)
    assert f"finds {share:.1%} of other answers" in passed(found)
    for others, refused in ((math.ceil(300 * share), True), (round(300 * (share + 0.02) / 2), False)):
        answers = [of_answer(True, True)] * (300 - others) + [of_answer(False, True)] * others
        assert refused == sum(answers, start=NO_EVIDENCE).refuted


def test_completions_are_pooled_in_the_order_of_the_requests() -> None:
    """Whatever order they arrive in, and once each; a shard that is stored counts as its completions did."""
    parts = [SampleEvidence(recorded=of_answer(True, True, one), firsts=(FirstToken(1, -1.0),)) for one in _answers(12)]
    one, other, again = SampleTest(VOCABULARY), SampleTest(VOCABULARY), SampleTest(VOCABULARY)
    for place, part in enumerate(parts):
        one.add(place, part)
    for place in (3, 1, 0, 2, 2, 11, 10, 9, 8, 7, 6, 5):
        other.add(place, parts[place])
    assert 4 == other.pooled.recorded.completions
    other.add(4, parts[4])
    stored = SampleEvidence.of_facts(sum(parts[:8], start=SampleEvidence()).facts())
    for place, part in ((8, sum(parts[8:], start=SampleEvidence())), (0, stored)):
        again.add(place, part, 8 if place == 0 else 4)
    for found in (other.pooled, again.pooled):
        assert one.pooled.recorded.log_e_C == pytest.approx(found.recorded.log_e_C)
        assert one.pooled.recorded.completions == found.recorded.completions


def test_evidence_is_stored_as_it_is() -> None:
    """Text of JSON and back."""
    found = replace(of_answer(False, False), tokens=3) + next(_answers(1))
    again = CompletionEvidence.from_json(found.to_json())
    assert vars(found).keys() == vars(again).keys()
    assert found.to_json() == again.to_json()

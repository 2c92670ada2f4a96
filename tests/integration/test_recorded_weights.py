"""The test of recorded answers on trained weights: answers that a real model sampled, scored by another or by the same one."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.errors import UnderstudyError
from pipeline.generation.evidence import ROUNDING, FirstToken, of_answer, of_tokens
from pipeline.generation.sample_test import SampleEvidence, SampleTest
from pipeline.models.loading import load_model, load_tokenizer
from tests.integration.conftest import Smoke

PROMPT, NEW, LISTED, VOCABULARY = 10, 40, 20, 512


@dataclass(frozen=True)
class Log:
    """A answers of NEW tokens, with the target's likeliest tokens at each: as a server gives them."""

    tokens_AN: NDArray[np.int32]
    ids_ANK: NDArray[np.int32]
    log_p_ANK: NDArray[np.float32]
    log_p_AN: NDArray[np.float32]
    kl: float  # of the weights that sampled from the target, in nats per token

    def tested(self, answer: int) -> SampleEvidence:
        tokens_N = self.tokens_AN[answer]
        found = of_tokens(tokens_N, self.ids_ANK[answer], self.log_p_ANK[answer], ROUNDING)
        first = FirstToken(int(tokens_N[0]), float(self.log_p_AN[answer, 0]))
        return SampleEvidence(recorded=of_answer(True, True, found), firsts=(first,))


@pytest.fixture(scope="module")
def target(smoke: Smoke) -> Any:
    """The smoke pair's target, in float32."""
    pair = smoke.place.artifact("pair", "first")
    model = load_model(pair / "target", "float32", torch.device("cpu"), trust_remote_code=False)
    return model.eval()


@pytest.fixture(scope="module")
def prompts(smoke: Smoke) -> torch.Tensor:
    """(A, PROMPT): the ends of the pair's prompts."""
    pair = smoke.place.artifact("pair", "first")
    tokenizer = load_tokenizer(pair / "tokenizer")
    texts = [json.loads(line)["prompt"] for line in (pair / "prompts.jsonl").read_text().splitlines()]
    ids = [one[-PROMPT:] for one in tokenizer(texts)["input_ids"] if len(one) >= PROMPT]
    return torch.tensor(ids)


def _sampled(model: Any, prompts_AP: torch.Tensor, seed: int) -> torch.Tensor:
    """(A, PROMPT + NEW)."""
    torch.manual_seed(seed)
    past, ids_AP = None, prompts_AP
    with torch.inference_mode():
        for _ in range(NEW):
            found = model(ids_AP if past is None else ids_AP[:, -1:], past_key_values=past, use_cache=True)
            past = found.past_key_values
            drawn = torch.multinomial(found.logits[:, -1].float().softmax(-1), 1)
            ids_AP = torch.cat([ids_AP, drawn], 1)
    return ids_AP


def _scored(target: Any, ids_AT: torch.Tensor, sampler: Any = None) -> Log:
    """The answers in `ids_AT` as a server of `target` scores them."""
    with torch.inference_mode():
        log_p_ANV = target(ids_AT[:, :-1]).logits[:, PROMPT - 1 :].float().log_softmax(-1)
        log_q_ANV = (
            log_p_ANV if sampler is None else sampler(ids_AT[:, :-1]).logits[:, PROMPT - 1 :].float().log_softmax(-1)
        )
        kl = float((log_q_ANV.exp() * (log_q_ANV - log_p_ANV)).sum(-1).mean())
        listed = log_p_ANV.topk(LISTED, -1)
        tokens = ids_AT[:, PROMPT:]
        return Log(
            tokens_AN=tokens.numpy().astype(np.int32),
            ids_ANK=listed.indices.numpy().astype(np.int32),
            log_p_ANK=listed.values.numpy(),
            log_p_AN=log_p_ANV.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).numpy(),
            kl=kl,
        )


def _logs(target: Any, sampler: Any, prompts: torch.Tensor, rounds: int) -> Iterator[Log]:
    for seed in range(rounds):
        yield _scored(target, _sampled(sampler, prompts, seed), sampler)


def _add(test: SampleTest, *logs: Log) -> None:
    """Answer by answer."""
    answers = [(log, answer) for log in logs for answer in range(len(log.tokens_AN))]
    for place, (one, answer) in enumerate(answers):
        test.add(place, one.tested(answer))


def _noisy(target: Any, share: float) -> Any:
    """`target` with noise in each weight matrix of `share` of its standard deviation."""
    noisy, generator = copy.deepcopy(target), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in noisy.parameters():
            if weight.dim() > 1:
                weight += share * weight.std() * torch.randn(weight.shape, generator=generator)
    return noisy


@pytest.mark.long
def test_answers_of_other_weights_are_refused(target: Any, prompts: torch.Tensor) -> None:
    """Weights with noise, a KL divergence of 0.028 nats per token: found after about 1,100 answers of 40 tokens. Chance of
    missing it in 2,900: below 1%."""
    logs = list(_logs(target, _noisy(target, 0.14), prompts, 8))
    assert all(0.02 < log.kl < 0.035 for log in logs)
    with pytest.raises(UnderstudyError, match="tokens are less likely than samples") as caught:
        _add(SampleTest(VOCABULARY), *logs)
    print(caught.value)


@pytest.mark.long
def test_samples_of_the_target_pass_and_mixed_up_ones_do_not(target: Any, prompts: torch.Tensor) -> None:
    """About 3,700 answers, looked at after each: a false alarm has a chance below 1 in 10,000. Then every tenth is exchanged with
    another one; its log p is that of its new prompt. That is found after about 800."""
    samples = [_sampled(target, prompts, seed) for seed in range(10)]
    right = SampleTest(VOCABULARY)
    _add(right, *(_scored(target, ids_AT) for ids_AT in samples))
    assert 10 * len(prompts) == right.pooled.recorded.completions
    assert right.pooled.recorded.log_e < 5
    for seed, ids_AT in enumerate(samples):
        chosen = torch.arange(seed, len(ids_AT), 10)
        ids_AT[chosen, PROMPT:] = ids_AT[chosen.roll(7), PROMPT:]
    with pytest.raises(UnderstudyError, match="they belong to other prompts") as caught:
        _add(SampleTest(VOCABULARY), *(_scored(target, ids_AT) for ids_AT in samples))
    print(caught.value)


@pytest.mark.long
def test_rounding_to_bfloat16_is_no_evidence(target: Any, prompts: torch.Tensor) -> None:
    """Answers of the target in bfloat16, scored in float32, are taken for the target's."""
    rounded = copy.deepcopy(target).bfloat16()
    log = _scored(target, _sampled(rounded, prompts[:64], 0), rounded)
    assert 1e-6 < log.kl < 1e-3
    test = SampleTest(VOCABULARY)
    _add(test, log)
    assert test.pooled.recorded.log_e < 1

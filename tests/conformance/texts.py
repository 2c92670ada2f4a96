"""Checks a text against a model: is every greedy token the argmax, and are sampled tokens as likely as expected?

Shapes: T positions of a completion, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import batches

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class TokenizedText:
    """A prompt and its completion; `tokens` may extend past `length`. Implements `ScoredCompletion` of the examination."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    length: int
    log_p: NDArray[np.float32]
    domain: str = ""


@dataclass(frozen=True)
class TokenStatistics:
    """For each token (T,): log p at temperature 1, the mean and the variance of log p under p, and the gap of its logit
    to the highest other one (negative if it is the argmax)."""

    log_p: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    short: NDArray[np.float64]


def text(prompt: NDArray[np.int32], tokens: Sequence[int], length: int) -> TokenizedText:
    return TokenizedText(prompt, np.array(tokens, dtype=np.int32), length, np.zeros(len(tokens), dtype=np.float32))


@torch.inference_mode()
def token_statistics(model: Any, texts: Sequence[TokenizedText]) -> list[TokenStatistics]:
    """The statistics of `model` for every token of every text, from one teacher-forced pass."""
    found: dict[int, TokenStatistics] = {}
    for numbers in batches([len(item.prompt) + len(item.tokens) for item in texts], BATCH_TOKENS):
        width = max(len(texts[number].prompt) + len(texts[number].tokens) for number in numbers)
        ids_BT = torch.zeros(len(numbers), width, dtype=torch.long)
        for row, number in enumerate(numbers):
            whole = np.concatenate([texts[number].prompt, texts[number].tokens])
            ids_BT[row, : len(whole)] = torch.from_numpy(whole.astype(np.int64))
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
        for row, number in enumerate(numbers):
            begin = len(texts[number].prompt) - 1
            logits_TV = logits_BTV[row, begin : begin + len(texts[number].tokens)].double()
            found[number] = _token_statistics(logits_TV, torch.from_numpy(texts[number].tokens.astype(np.int64)))
    return [found[number] for number in range(len(texts))]


def _token_statistics(logits_TV: torch.Tensor, tokens_T: torch.Tensor) -> TokenStatistics:
    log_p_TV = logits_TV.log_softmax(-1)
    p_TV, own_T1 = log_p_TV.exp(), tokens_T.unsqueeze(1)
    mean_T = (p_TV * log_p_TV).sum(-1)
    variance_T = (p_TV * log_p_TV**2).sum(-1) - mean_T**2
    others_T = logits_TV.scatter(1, own_T1, -torch.inf).amax(-1)
    log_p_T, short_T = log_p_TV.gather(1, own_T1).squeeze(1), others_T - logits_TV.gather(1, own_T1).squeeze(1)
    return TokenStatistics(log_p_T.numpy(), mean_T.numpy(), variance_T.numpy(), short_T.numpy())


def with_log_p(model: Any, texts: Sequence[TokenizedText]) -> list[TokenizedText]:
    """The texts with the target's log p, needed for a probabilistic draft's acceptance."""
    statistics = token_statistics(model, texts)
    return [
        replace(item, log_p=item_statistics.log_p.astype(np.float32))
        for item, item_statistics in zip(texts, statistics, strict=True)
    ]


def log_p_test(texts: Sequence[TokenizedText], statistics: Sequence[TokenStatistics]) -> tuple[float, float, float]:
    """Mean log p of the texts' tokens, its expectation if the target generated them, and the difference in standard errors.

    log p(x_t) minus its mean under p is a martingale difference, so the variance of the sum is the sum of the variances, whatever
    token a text ends at.
    """
    cut = [(item_statistics, slice(item.length)) for item, item_statistics in zip(texts, statistics, strict=True)]
    log_p = np.concatenate([item_statistics.log_p[part] for item_statistics, part in cut])
    mean = np.concatenate([item_statistics.mean[part] for item_statistics, part in cut])
    variance = sum(float(item_statistics.variance[part].sum()) for item_statistics, part in cut)
    return float(log_p.mean()), float(mean.mean()), float((log_p - mean).sum() / variance**0.5)


def continue_texts(
    model: Any, texts: Sequence[TokenizedText], count: int, sampling: Sampling, vocabulary: int, seed: int
) -> list[TokenizedText]:
    """The texts up to their length, then `count` further target tokens, past the end of sequence."""
    if count == 0:
        return [replace(item, tokens=item.tokens[: item.length], log_p=item.log_p[: item.length]) for item in texts]
    requests = [
        Request([*item.prompt.tolist(), *item.tokens[: item.length].tolist()], count, seed * len(texts) + number)
        for number, item in enumerate(texts)
    ]
    completions = Decoder(model, None, sampling=sampling, vocabulary=vocabulary).decode(requests)
    return [
        text(item.prompt, [*item.tokens[: item.length].tolist(), *completion.tokens], item.length)
        for item, completion in zip(texts, completions, strict=True)
    ]


def sample_texts(
    model: Any, prompts: Sequence[NDArray[np.int32]], tokens: int, lookahead: int, stop: Sequence[int], vocabulary: int,
    seed: int,
) -> list[TokenizedText]:  # fmt: skip
    """Texts sampled from the target at temperature 1 by Understudy's decoder."""
    requests = [
        Request(prompt.tolist(), tokens, (seed << 32) + number, lookahead) for number, prompt in enumerate(prompts)
    ]
    decoder = Decoder(model, None, sampling=Sampling(), vocabulary=vocabulary, stop_tokens=stop)
    return [
        text(prompt, completion.tokens, completion.length)
        for prompt, completion in zip(prompts, decoder.decode(requests), strict=True)
    ]

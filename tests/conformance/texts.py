"""What a target thinks of a text: is every greedy token its argmax, are sampled tokens as likely as they should be?

Shapes: T positions of a completion, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.acceptance.examine import batches
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.sampling import Sampling

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Text:
    """A prompt and what followed; `tokens` may go on past `length`. Is a `StoredCompletion` of the examination."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    length: int
    log_p: NDArray[np.float32]


@dataclass(frozen=True)
class Opinion:
    """Of each token (T,): its log p at temperature 1, the mean and the variance of log p under p, and by how much its
    logit misses the highest other one (negative where it is the argmax)."""

    log_p: NDArray[np.float64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    short: NDArray[np.float64]


def text(prompt: NDArray[np.int32], tokens: Sequence[int], length: int) -> Text:
    return Text(prompt, np.array(tokens, dtype=np.int32), length, np.zeros(len(tokens), dtype=np.float32))


@torch.inference_mode()
def judge(model: Any, texts: Sequence[Text]) -> list[Opinion]:
    """The opinion of `model` of every token of every text, by one teacher-forced pass."""
    found: dict[int, Opinion] = {}
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
            found[number] = _opinion(logits_TV, torch.from_numpy(texts[number].tokens.astype(np.int64)))
    return [found[number] for number in range(len(texts))]


def _opinion(logits_TV: torch.Tensor, tokens_T: torch.Tensor) -> Opinion:
    log_p_TV = logits_TV.log_softmax(-1)
    p_TV, own_T1 = log_p_TV.exp(), tokens_T.unsqueeze(1)
    mean_T = (p_TV * log_p_TV).sum(-1)
    variance_T = (p_TV * log_p_TV**2).sum(-1) - mean_T**2
    others_T = logits_TV.scatter(1, own_T1, -torch.inf).amax(-1)
    log_p_T, short_T = log_p_TV.gather(1, own_T1).squeeze(1), others_T - logits_TV.gather(1, own_T1).squeeze(1)
    return Opinion(log_p_T.numpy(), mean_T.numpy(), variance_T.numpy(), short_T.numpy())


def with_log_p(model: Any, texts: Sequence[Text]) -> list[Text]:
    """The texts with the target's log p, which a probabilistic draft's acceptance is measured against."""
    opinions = judge(model, texts)
    return [
        replace(item, log_p=opinion.log_p.astype(np.float32)) for item, opinion in zip(texts, opinions, strict=True)
    ]


def surprise(texts: Sequence[Text], opinions: Sequence[Opinion]) -> tuple[float, float, float]:
    """Mean log p of the texts' tokens, its expectation if the target wrote them, and the difference in standard errors.

    log p(x_t) minus its mean under p is a martingale's step, so the sum's variance is the sum of the variances, whatever
    token a text ends at.
    """
    cut = [(opinion, slice(item.length)) for item, opinion in zip(texts, opinions, strict=True)]
    log_p = np.concatenate([opinion.log_p[part] for opinion, part in cut])
    mean = np.concatenate([opinion.mean[part] for opinion, part in cut])
    variance = sum(float(opinion.variance[part].sum()) for opinion, part in cut)
    return float(log_p.mean()), float(mean.mean()), float((log_p - mean).sum() / variance**0.5)


def go_on(model: Any, texts: Sequence[Text], count: int, sampling: Sampling, vocabulary: int, seed: int) -> list[Text]:
    """The texts up to their length, then `count` further tokens of the target's, end of sequence or not."""
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


def speak(
    model: Any, prompts: Sequence[NDArray[np.int32]], tokens: int, lookahead: int, stop: Sequence[int], vocabulary: int,
    seed: int,
) -> list[Text]:  # fmt: skip
    """What the target itself says at temperature 1, by Understudy's decoder."""
    requests = [
        Request(prompt.tolist(), tokens, (seed << 32) + number, lookahead) for number, prompt in enumerate(prompts)
    ]
    decoder = Decoder(model, None, sampling=Sampling(), vocabulary=vocabulary, stop_tokens=stop)
    return [
        text(prompt, completion.tokens, completion.length)
        for prompt, completion in zip(prompts, decoder.decode(requests), strict=True)
    ]

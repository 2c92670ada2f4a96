"""Seconds a token of a decoder, prefill left out."""

import time
from typing import Any, NamedTuple

from pipeline.speculation.batch import Request
from pipeline.speculation.statistics import count


class Pace(NamedTuple):
    """What one decode took."""

    seconds: float  # a token
    omega: float  # tokens per target call


def seconds_per_token(decoder: Any, prompt: int, tokens: int, seed: int, batch: int = 1, draws: int = 1) -> Pace:
    """Decode `batch` made-up prompts of `prompt` tokens for `tokens` tokens each, `draws` times with other luck."""
    done, took = [], 0.0
    for draw in range(draws):
        first = (seed * draws + draw) * batch
        requests = [
            Request([(7 * row + 13 * at + seed) % decoder.vocabulary for at in range(prompt)], tokens, first + row)
            for row in range(batch)
        ]
        began = time.perf_counter()
        decoded = decoder.decode(requests)
        took += time.perf_counter() - began - decoded[0].seconds.prefill
        done += decoded
    found = count(done)
    return Pace(took / found.tokens, found.tokens_per_target_call)


def plain_transformers(model: Any, prompt: int, tokens: int) -> float:
    """Seconds a token of transformers' own greedy generation, prefill left out by the difference of two lengths."""
    from tests.benchmarks import assisted

    ids = [13 * at % 1000 + 1 for at in range(prompt)]
    marks = [time.perf_counter()]
    for length in (2, 2 + tokens):
        assisted.generate(model, None, 0, ids, length, sample=False)
        marks.append(time.perf_counter())
    return ((marks[2] - marks[1]) - (marks[1] - marks[0])) / tokens

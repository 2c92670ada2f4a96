"""Ways that take turns, and seconds a token of a decoder, prefill left out."""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

from pipeline.speculation.batch import Request
from pipeline.speculation.statistics import count

K = TypeVar("K")
T = TypeVar("T")


def in_turns(ways: Mapping[K, Callable[[int], T]], turns: int) -> dict[K, list[T]]:
    """What each way gives in each turn, so that a slow moment of the machine falls on all. Ways take the number of the turn;
    turn 0 warms up and is left out."""
    found: dict[K, list[T]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            one = way(turn)
            if turn:
                found[name].append(one)
    return found


def seconds_of(run: Callable[[], object]) -> Callable[[int], float]:
    """A way that gives the seconds of a call."""

    def timed(turn: int) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return timed


def median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Of each turn."""
    return median(one / other for one, other in zip(ones, others, strict=True))


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

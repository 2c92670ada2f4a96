"""A model of a deployment's traffic, by scrape: drafts, accepted first tokens, and accepted tokens.

Answer lengths are those of a trace of production (`shared/data/traces`, see its README). The trace has an hour, so the rest is a
model: a daily and a weekly cycle of the rate and of the mix of domains; a mix that wanders (two time constants, 3 hours and 2
days); over-dispersed arrivals (gamma, coefficient of variation 0.5, anew at each scrape); three bursts a day of one domain, 5 to
40 minutes, of half to twice the mean traffic; and requests whose acceptance differs (beta, standard deviation 0.12). Domains
accept as examined. A token after an accepted one is accepted as often as the first of its request.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PER_DAY = 288  # scrapes, every 5 minutes
SCRAPE = 86_400 / PER_DAY
_BURSTS, _BURST_SCRAPES, _BURST_SIZE = 3, (1, 9), (0.5, 2.0)
_SPREAD = 0.12
_WANDERS = ((36, 0.2), (576, 0.15))  # time constant in scrapes, standard deviation of the logit
_DAILY, _WEEKLY = 0.35, 0.3  # of the logits of the mix
_GAMMA = 5


@dataclass(frozen=True)
class Traffic:
    """By scrape."""

    drafts: Floats
    first: Floats
    accepted: Floats


def answer_lengths(data: Path) -> NDArray[np.int64]:
    """Tokens of the answers of the trace."""
    with (data / "traces" / "azure_llm_2023_conv.csv").open(newline="") as rows:
        found = np.array([int(row["GeneratedTokens"]) for row in csv.DictReader(rows)])
    return found[found > 0]


def traffic(
    rng: np.random.Generator,
    domains: Mapping[str, float],
    lengths: NDArray[np.int64],
    requests: float,
    days: int,
    fall: float = 0.0,
    fall_at: int = 0,
    fall_of: Literal["all", "later"] = "all",
) -> Traffic:
    """`requests`: mean requests a scrape, all replicas together. `fall`: of the acceptance of every domain, from scrape
    `fall_at`; of the tokens after the first, where it is `later`."""
    scrapes = days * PER_DAY
    found = np.zeros((3, scrapes))
    load = _requests(rng, len(domains), requests, scrapes)
    for place, rate in enumerate(domains.values()):
        scrape = np.repeat(np.arange(scrapes), load[:, place])
        fallen = np.where(scrape >= fall_at, fall, 0.0) if fall else np.zeros(len(scrape))
        mean = rate - fallen if fall_of == "all" else np.full(len(scrape), rate)
        rounds = np.maximum(1, rng.choice(lengths, len(scrape)) / _tokens_per_round(rate)).astype(int)
        weight = mean * (1 - mean) / _SPREAD**2 - 1
        share = rng.beta(mean * weight, (1 - mean) * weight)
        first = rng.binomial(rounds, share)
        later = _later(rng, first, share if fall_of == "all" else np.maximum(share - fallen, 0.0))
        found += [np.bincount(scrape, one, scrapes) for one in (rounds, first, first + later)]
    return Traffic(*found)


def _later(rng: np.random.Generator, first: NDArray[np.int64], share: Floats) -> Floats:
    """Accepted tokens after so many accepted first ones: each is accepted at this share, up to the first that is not. By the mean
    and the variance of their number, since a year has tens of millions of requests."""
    mean, square = np.zeros_like(share), np.zeros_like(share)
    for place in range(1, _GAMMA):  # E[X] and E[X^2] of X = 0 .. gamma - 1 from P(X >= place) = share^place
        reached = share**place
        mean += reached
        square += (2 * place - 1) * reached
    drawn = first * mean + np.sqrt(first * np.maximum(square - mean**2, 0.0)) * rng.standard_normal(len(share))
    return np.asarray(np.clip(drawn, 0, first * (_GAMMA - 1)))


def _requests(rng: np.random.Generator, domains: int, mean: float, scrapes: int) -> NDArray[np.int64]:
    """[scrape, domain]."""
    from scipy.signal import lfilter

    scrape = np.arange(scrapes)
    day, weekend = 2 * np.pi * scrape / PER_DAY, (scrape // PER_DAY) % 7 >= 5
    phases, weekends = rng.uniform(0, 2 * np.pi, domains), rng.normal(0, _WEEKLY, domains)
    logits = rng.normal(0, 0.5, domains) + _DAILY * np.sin(day[:, None] + phases) + weekend[:, None] * weekends
    for constant, deviation in _WANDERS:
        steps = rng.normal(0, deviation * (2 / constant) ** 0.5, (scrapes, domains))
        logits += lfilter([1], [1, 1 / constant - 1], steps, axis=0)
    mix = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    rate = mean * (1 + 0.6 * np.sin(day - 1)) * np.where(weekend, 0.6, 1) * rng.gamma(4, 1 / 4, scrapes)
    expected = rate[:, None] * mix
    for start in rng.integers(0, scrapes, _BURSTS * scrapes // PER_DAY):
        during = slice(start, start + rng.integers(*_BURST_SCRAPES))
        expected[during, rng.integers(domains)] += mean * rng.uniform(*_BURST_SIZE)
    return np.asarray(rng.poisson(expected))


def _tokens_per_round(rate: float) -> float:
    """At draft length 5, for iid acceptance."""
    return (1 - rate ** (_GAMMA + 1)) / (1 - rate)

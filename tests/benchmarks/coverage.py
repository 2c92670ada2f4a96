"""Coverage of the 95% intervals: simulated prompts of unequal lengths, with heavy tails, few prompts and one-prompt domains.

Each repeat draws new prompts from known distributions and asks whether the interval holds the true figure. The intervals are the
product's own: `RatioSums` for one draft, `ratio_gain` for the difference of two. Beside them stands Student's t with one degree
of freedom a prompt, which is what most tools report.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.acceptance.intervals import Interval, ratio_gain
from pipeline.acceptance.ratio_sums import RatioSums
from tests.benchmarks.figures import write

_REPEATS = 2000
_TRUTH = 2_000_000  # tokens' worth of prompts for the true figure
_LOW, _HIGH, _DUE = 0.93, 0.97, 20

Floats = NDArray[np.float64]
Generator = np.random.Generator


def _lognormal(rng: Generator, count: int) -> Floats:
    return np.clip(np.round(rng.lognormal(4.5, 1, count)), 4, 4096)


_LENGTHS: dict[str, Callable[[Generator, int], Floats]] = {
    "128 tokens": lambda rng, count: np.full(count, 128.0),
    "16 to 512, uniform": lambda rng, count: rng.integers(16, 513, count).astype(float),
    "exponential, cap 512": lambda rng, count: np.minimum(np.ceil(rng.exponential(200, count)), 512.0),
    "lognormal, 4 to 4,096": _lognormal,
    "1 in 5 has 1,000, others 16": lambda rng, count: np.where(rng.random(count) < 0.2, 1000.0, 16.0),
    "two have 1,000, others 16": lambda rng, count: np.r_[np.full(count - 2, 16.0), 1000.0, 1000.0],
}

# Acceptance rate of each prompt, or the difference of two drafts' rates, given the lengths.
_RATES: dict[str, Callable[[Generator, Floats], Floats]] = {
    "rate 0.7": lambda rng, tokens: rng.beta(7, 3, len(tokens)),
    "rate 0.9, skewed": lambda rng, tokens: rng.beta(4.5, 0.5, len(tokens)),
    "rate rises with length": lambda rng, tokens: 0.4 + 0.07 * np.log(tokens) + rng.normal(0, 0.1, len(tokens)),
}
_DIFFERENCES: dict[str, Callable[[Generator, Floats], Floats]] = {
    "normal": lambda rng, tokens: rng.normal(0.02, 0.05, len(tokens)),
    "Student's t, 3 dof": lambda rng, tokens: 0.02 + 0.03 * rng.standard_t(3, len(tokens)),
    "exponential losses": lambda rng, tokens: 0.1 - rng.exponential(0.08, len(tokens)),
    "1 prompt in 10 loses 35 points": lambda rng, tokens: (
        np.where(rng.random(len(tokens)) < 0.1, -0.3, 0.05) + rng.normal(0, 0.02, len(tokens))
    ),
}


class _Case(NamedTuple):
    lengths: str
    values: str
    prompts: int  # of the domain under study
    others: tuple[int, ...] = ()  # prompts of other domains: 128 tokens, rate 0.5 or a difference of 0


def _cases() -> Iterator[_Case]:
    kinds = (*_RATES, *_DIFFERENCES)
    sizes = {
        "128 tokens": (20, 40, 200),
        "16 to 512, uniform": (40, 200),
        "exponential, cap 512": (50, 200),
        "lognormal, 4 to 4,096": (150, 400),
        "1 in 5 has 1,000, others 16": (200, 400),
    }
    for (lengths, counts), values in itertools.product(sizes.items(), kinds):
        for prompts in counts:
            yield _Case(lengths, values, prompts)
        yield _Case(lengths, values, counts[0], (20, 200))
        yield _Case(lengths, values, counts[0], (1,))
        yield _Case(lengths, values, counts[0], (1, 1, 1))


def _small_cases() -> Iterator[_Case]:
    """Fewer than 20 effective prompts: an interval is not due."""
    for values in ("rate 0.7", "rate 0.9, skewed", "normal", "exponential losses"):
        for lengths, prompts in (
            *(("128 tokens", 4), ("128 tokens", 8), ("16 to 512, uniform", 12), ("lognormal, 4 to 4,096", 20)),
            ("two have 1,000, others 16", 102),
        ):
            yield _Case(lengths, values, prompts)


def main() -> None:
    """Measure and write."""
    figure = {
        "repeats": _REPEATS,
        "cases": [_measure(case) for case in _cases()],
        "small": [_measure(case) for case in _small_cases()],
    }
    write("coverage", "python -m tests.benchmarks coverage", figure)


class _Draw(NamedTuple):
    tokens_N: Floats
    values_N: Floats
    domains: list[str]


def _draw(case: _Case, rng: Generator) -> _Draw:
    tokens_N = _LENGTHS[case.lengths](rng, case.prompts)
    parts = [_Draw(tokens_N, _values(case, rng, tokens_N), ["studied"] * case.prompts)]
    for number, count in enumerate(case.others):
        middle = 0.5 if case.values in _RATES else 0.0
        parts.append(_Draw(np.full(count, 128.0), rng.normal(middle, 0.05, count), [f"other {number}"] * count))
    return _Draw(
        np.concatenate([part.tokens_N for part in parts]),
        np.concatenate([part.values_N for part in parts]),
        [domain for part in parts for domain in part.domains],
    )


def _values(case: _Case, rng: Generator, tokens_N: Floats) -> Floats:
    return (_RATES | _DIFFERENCES)[case.values](rng, tokens_N)


def _truth(case: _Case, rng: Generator) -> float:
    """Ratio of expected sums, with each domain's number of prompts as in the case."""
    draws = max(_TRUTH // case.prompts, 1)
    tokens = np.concatenate([_LENGTHS[case.lengths](rng, case.prompts) for _ in range(min(draws, 20_000))])
    scale = case.prompts / len(tokens)
    other = 128.0 * sum(case.others)
    middle = 0.5 if case.values in _RATES else 0.0
    accepted = float((_values(case, rng, tokens) * tokens).sum()) * scale + middle * other
    return accepted / (float(tokens.sum()) * scale + other)


def _measure(case: _Case) -> dict[str, Any]:
    rng = np.random.default_rng(20261123)
    truth = _truth(case, rng)
    covered = given = by_student = 0
    widths, effective = [], []
    for _ in range(_REPEATS):
        draw = _draw(case, rng)
        found, student = _interval(case, draw), _student(draw)
        by_student += student[0] <= truth <= student[1]
        effective.append(_effective(draw))
        if np.isfinite(found.low):
            given += 1
            covered += found.low <= truth <= found.high
            widths.append((found.high - found.low) / (student[1] - student[0]))
    return {
        **case._asdict(),
        "effective_prompts": float(np.median(effective)),
        "given": given / _REPEATS,
        "coverage": covered / given if given else None,
        "student_coverage": by_student / _REPEATS,
        "width_over_student": float(np.median(widths)) if widths else None,
    }


def _interval(case: _Case, draw: _Draw) -> Interval:
    tokens_N, values_N, domains = draw
    if case.values in _DIFFERENCES:
        base_N = np.full(len(tokens_N), 0.5) * tokens_N
        return ratio_gain(base_N + values_N * tokens_N, tokens_N, base_N, tokens_N, domains, 0.95)
    sums = RatioSums(1)
    sums.add((values_N * tokens_N)[:, None], tokens_N[:, None], domains)
    return sums.interval(0, 0.95)


def _student(draw: _Draw) -> tuple[float, float]:
    """Linearised variance, stratified, with one degree of freedom a prompt. A domain of one prompt adds nothing."""
    tokens_N, values_N, domains = draw
    value = float((values_N * tokens_N).sum() / tokens_N.sum())
    residuals_N = (values_N - value) * tokens_N / tokens_N.sum()
    labels = np.array(domains)
    parts = [part for part in (residuals_N[labels == label] for label in np.unique(labels)) if len(part) > 1]
    error = sum(len(part) * part.var(ddof=1) for part in parts) ** 0.5
    half = float(stats.t.ppf(0.975, sum(len(part) - 1 for part in parts)) * error)
    return value - half, value + half


def _effective(draw: _Draw) -> float:
    """Kish's effective number of prompts of the domain under study."""
    tokens = draw.tokens_N[np.array(draw.domains) == "studied"]
    return float(tokens.sum() ** 2 / (tokens**2).sum())


def section(figure: dict[str, Any]) -> Iterator[str]:
    """Its section of a page in docs/benchmarks/."""
    due = [row for row in figure["cases"] if row["effective_prompts"] >= _DUE]
    inside = sum(_LOW <= row["coverage"] <= _HIGH for row in due)
    student = sum(_LOW <= row["student_coverage"] <= _HIGH for row in due)
    found = np.array([row["coverage"] for row in due])
    yield "## Coverage of the 95% intervals\n"
    yield (
        f"{figure['repeats']:,} draws of simulated prompts a case (standard error of a coverage of 0.95: "
        f"{(0.95 * 0.05 / figure['repeats']) ** 0.5:.4f}). Of {len(due)} cases in which the domain has at least {_DUE} effective "
        f"prompts, **{inside} are covered between {_LOW} and {_HIGH}**, lowest {found.min():.3f}, highest {found.max():.3f}. "
        f"Student's t with one degree of freedom a prompt: {student}, lowest "
        f"{min(row['student_coverage'] for row in due):.3f}. Other domains have 128 tokens a prompt. The cases outside "
        f"{_LOW} to {_HIGH}, then the lowest coverage of each kind:\n"
    )
    outside = [row for row in due if not _LOW <= row["coverage"] <= _HIGH]
    lowest = [
        min((row for row in due if (row["lengths"], row["values"]) == kind), key=lambda row: row["coverage"])
        for kind in dict.fromkeys((row["lengths"], row["values"]) for row in due)
    ]
    yield from _table([*outside, *(row for row in lowest if row not in outside)])
    yield "\nBelow 20 effective prompts an interval is given only with at least 5 degrees of freedom:\n"
    yield from _table(figure["small"])


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| completion lengths | values | prompts | other domains | effective prompts | interval given | coverage | Student's t "
        "| width over Student's t |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        others = ", ".join(str(count) for count in row["others"]) or "-"
        coverage = "-" if row["coverage"] is None else f"{row['coverage']:.3f}"
        width = "-" if row["width_over_student"] is None else f"{row['width_over_student']:.2f}"
        yield (
            f"| {row['lengths']} | {row['values']} | {row['prompts']} | {others} | {row['effective_prompts']:.0f} "
            f"| {row['given']:.0%} | {coverage} | {row['student_coverage']:.3f} | {width} |"
        )

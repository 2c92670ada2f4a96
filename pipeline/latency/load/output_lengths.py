"""Output lengths of requests, as a distribution: the high quantiles of the latency are those of long outputs.

With one fixed length for all, the 0.95 quantile at 8 requests was predicted 51% too low for a server whose output lengths vary.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from pipeline.errors import UsageError
from pipeline.latency.costs.columns import COLUMNS, plain_name
from pipeline.latency.costs.csv_rows import read_csv
from pipeline.latency.costs.tables import json_documents
from pipeline.store.json_text import read_text

Ints = NDArray[np.int64]

LEAST, MOST = 2, 32_768  # tokens of one output
_QUANTILES = 200  # equally likely requests that stand for a longer list
_MIDDLE_Q = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
_COLUMNS = (*COLUMNS["tokens"], "output_len", "osl", "completion_tokens")
_HOW = "give a number, MEAN:CAP, or a file of lengths"
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)_e2el_ms")  # in a result of `vllm bench serve`


def parse_output_lengths(text: str) -> Ints:
    """`200`: one length. `300:1024`: lengths with this mean that end at random and at the cap (geometric). Otherwise a file: a
    CSV table with a column of lengths, or results of `vllm bench serve`, with `--save-detailed` or by their latencies. Returns at
    most 200 equally likely lengths, ascending. UsageError for anything else."""
    if Path(text).is_file():
        return _quantiles(_read(Path(text)), text)
    mean, colon, cap = text.partition(":")
    try:
        numbers = [float(number_text) for number_text in ([mean, cap] if colon else [mean])]
    except ValueError:
        raise UsageError(f"--output-tokens {text}: no such file, and not a number; {_HOW}") from None
    if not all(LEAST <= number <= MOST and number == int(number) for number in numbers):
        raise UsageError(f"--output-tokens {text}: give whole numbers from {LEAST} to {MOST:,}")
    if not colon:
        return np.array([int(numbers[0])])
    if numbers[0] >= numbers[1]:
        raise UsageError(f"--output-tokens {text}: the mean must be below the cap; lower it")
    return _geometric(*numbers)


def _geometric(mean: float, cap: float) -> Ints:
    """Quantiles of min(1 + geometric, cap) with this mean."""

    def lengths(scale: float) -> NDArray[np.float64]:
        clipped: NDArray[np.float64] = np.clip(np.ceil(-scale * np.log1p(-_MIDDLE_Q)), LEAST, cap)
        return clipped

    return lengths(float(brentq(lambda scale: lengths(scale).mean() - mean, 1e-3, 1e9))).astype(np.int64)


def _quantiles(lengths: Sequence[Any], where: str) -> Ints:
    try:
        found_W = np.array([float(length) for length in lengths])
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"--output-tokens {where}: a length is not a number; correct it") from None
    found_W = found_W[found_W > 0]  # failed requests have none
    if not len(found_W) or not (np.isfinite(found_W) & (found_W <= MOST)).all():
        raise UsageError(f"--output-tokens {where}: give lengths from {LEAST} to {MOST:,} tokens")
    if len(found_W) > _QUANTILES:
        found_W = np.quantile(found_W, _MIDDLE_Q)
    return np.sort(np.maximum(found_W.round(), LEAST).astype(np.int64))


def _read(path: Path) -> Sequence[Any]:
    where = f"--output-tokens {path}"
    try:
        text = read_text(path)
    except (OSError, ValueError):
        raise UsageError(f"{where}: not a text file; {_HOW}") from None
    if path.suffix in (".json", ".jsonl"):
        return _detailed(text, where)
    table = read_csv(text, where)
    named = {plain_name(name): name for name in reversed(table.names)}
    column = next((named[name] for name in _COLUMNS if name in named), None)
    if column is None:
        raise UsageError(f"{where}: no column of output lengths; name it {', '.join(_COLUMNS[:-1])} or {_COLUMNS[-1]}")
    return [row.cells[column] for row in table.rows if column in row.cells]


def _detailed(text: str, where: str) -> Sequence[Any]:
    """All `output_lens` of the results that have them, one or one a line; otherwise lengths by the latencies of one."""
    lengths: Sequence[Any] = []
    try:
        results = json_documents(text)
        results = results if isinstance(results, list) else [results]
        lengths = [length for result in results for length in result.get("output_lens", ())]
        lengths = lengths or _by_latency(results)
    except (ValueError, AttributeError, TypeError, KeyError, ArithmeticError):
        pass
    if not len(lengths):
        raise UsageError(
            f"{where}: no output_lens, and no percentiles of the latency; run `vllm bench serve` with --save-result and "
            "--save-detailed or --percentile-metrics ttft,tpot,itl,e2el, or give a CSV table"
        )
    return lengths


def _by_latency(results: Sequence[Mapping[str, Any]]) -> Sequence[float]:
    """Of the result with the shortest mean latency: at a light load a latency, less the time to first token, is in proportion to
    the output. Between known percentiles quantiles are those of an exponential distribution, and below the lowest they are
    linear, with the mean of the outputs. Empty without percentiles."""
    known = [result for result in results if "mean_e2el_ms" in result and any(map(_PERCENTILE.fullmatch, result))]
    if not known:
        return []
    fastest = min(known, key=lambda result: float(result["mean_e2el_ms"]))
    mean = float(fastest["total_output_tokens"]) / float(fastest["completed"])
    first = float(fastest.get("mean_ttft_ms", 0.0))
    shares = {float(match[1]) / 100: fastest[name] for name in fastest if (match := _PERCENTILE.fullmatch(name))}
    if "median_e2el_ms" in fastest:
        shares[0.5] = fastest["median_e2el_ms"]
    each_token = (float(fastest["mean_e2el_ms"]) - first) / mean
    tokens = {
        share: (float(latency) - first) / each_token for share, latency in sorted(shares.items()) if 0 < share < 1
    }
    if not all(-MOST <= length <= MOST for length in (mean, *tokens.values())):
        raise ValueError("no lengths")
    lowest, known_Q = min(tokens), -np.log1p(-np.array(list(tokens)))
    above_Q = np.interp(-np.log1p(-_MIDDLE_Q), known_Q, list(tokens.values()))
    below_Q = np.clip(_MIDDLE_Q / lowest, 0, 1)  # from the shortest output to the lowest percentile
    rising_Q, shortest_Q = above_Q * below_Q, 1 - below_Q
    shortest = float(np.clip((mean - rising_Q.mean()) / shortest_Q.mean(), 0, tokens[lowest]))
    found_Q: Sequence[float] = (rising_Q + shortest * shortest_Q).tolist()
    return found_Q

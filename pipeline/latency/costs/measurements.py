"""Measurements of a server under load: tables (CSV), `vllm bench serve` and GuideLLM results, read into steps.

A step is a pass of the target with what was drafted for it. Its seconds are a token's seconds times the tokens that a step gives
a request; the prefills of others, which hold it up, are in them.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.errors import UsageError

# What a row can say, and what its column may be called; the first that is there is read. Times whose name has `ms` in it are
# milliseconds, others seconds.
COLUMNS: dict[str, tuple[str, ...]] = {
    "requests": ("requests", "concurrency", "max_concurrency", "request_concurrency", "batch", "batch_size"),
    "rate": ("rate", "request_rate", "qps"),
    "served_rate": ("served_rate", "request_throughput", "requests_per_second"),
    "gamma": ("gamma", "k", "num_speculative_tokens", "draft_length"),
    "acceptance_length": (
        "acceptance_length",
        "mean_acceptance_length",
        "spec_decode_acceptance_length",
        "tokens_per_target_call",
        "omega",
    ),
    "acceptance_rate": ("acceptance_rate", "alpha"),
    "draft_acceptance_rate": ("draft_acceptance_rate",),
    "tpot": ("tpot", "tpot_s", "tpot_p50_ms", "tpot_ms", "median_tpot_ms", "mean_tpot_ms"),
    "ttft": ("ttft", "ttft_s", "ttft_p50_ms", "ttft_ms", "median_ttft_ms", "mean_ttft_ms"),
    "latency": ("latency", "latency_s", "latency_ms", "mean_e2el_ms", "e2el_ms", "request_latency"),
    "throughput": ("throughput", "output_tok_s", "output_throughput"),
    "tokens": ("tokens", "output_tokens", "output_len"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "input_len"),
}
_TIMES = ("tpot", "ttft", "latency")
_SHARES = ("acceptance_rate", "draft_acceptance_rate")
_JSON = (".json", ".jsonl")
_MAX_PLAIN_TOKENS = 1.05  # tokens a step up to which rounding may have made more of one
_MAX_TPOT = 3.0  # seconds of a token that are taken for a mistaken unit
_MOST_REQUESTS = 100_000
_MIN_SERVED = 0.95  # served over asked below which the line was growing


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One load at one draft length."""

    where: str  # file and row, for error messages
    requests: float  # mean number of concurrent requests
    gamma: int  # draft length; 0 is plain decoding
    tokens_per_step: float  # of each request
    step_seconds: float
    output_tokens: float | None = None  # mean output length
    ttft: float | None = None  # time to first token, seconds
    isolated: bool = False  # the step was measured alone, so it contains no prefills of other requests


def read_measurements(
    path: Path, columns: Mapping[str, str] | None = None, values: Mapping[str, float] | None = None
) -> list[Measurement]:
    """Every row of a file. `columns` says what a column is called, `values` what no column says, both by the names of `COLUMNS`.
    UsageError, with file and row, for what cannot be read."""
    for given in (columns or {}, values or {}):
        if unknown := next((name for name in given if name not in COLUMNS), None):
            raise UsageError(f"{path}: '{unknown}' is nothing that is measured; there are {', '.join(COLUMNS)}")
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no measurement in it")
    if unsound := next((name for name, value in (values or {}).items() if not math.isfinite(value)), None):
        raise UsageError(f"{path}: {unsound} is no number")
    parsed, values = [(_parse(row, where, columns or {}), where, row) for where, row in rows], dict(values or {})
    for parsed_row, where, _ in parsed if path.suffix not in _JSON else ():
        if conflict := next((name for name, value in values.items() if parsed_row.get(name, value) != value), None):
            raise UsageError(
                f"{where}: says itself that {conflict} is {parsed_row[conflict]:g}; leave {conflict}={values[conflict]:g} out"
            )
    return [_measurement(parsed_row | values, where, row) for parsed_row, where, row in parsed]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "this is no text"
        raise UsageError(f"{path}: {reason}") from None
    if path.suffix in _JSON:
        for number, result in enumerate(_results(path, text), 1):
            yield f"{path}: result {number}", result
    else:
        lines = text.splitlines()
        delimiter = max(",;\t", key=lines[0].count) if lines else ","
        for number, row in enumerate(csv.DictReader(lines, delimiter=delimiter), 2):
            yield f"{path}: line {number}", {key: value for key, value in row.items() if key is not None and value}


def _results(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Of `vllm bench serve` (one, a list or one a line) or of a GuideLLM report."""
    try:
        found = _json(text)
    except ValueError:
        raise UsageError(f"{path}: this is no JSON, neither whole nor by line") from None
    if isinstance(found, Mapping) and isinstance(found.get("benchmarks"), Sequence):
        yield from (_guidellm(path, number, item) for number, item in enumerate(found["benchmarks"], 1))
        return
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, Mapping) or "completed" not in item:
            raise UsageError(
                f"{path}: neither a result of `vllm bench serve` nor a GuideLLM report; give a table as CSV"
            )
        yield _vllm(path, dict(item))


def _json(text: str) -> Any:
    """Whole, or a value a line, as `vllm bench serve --append-result` writes them."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _vllm(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """With what its totals say: lengths; the draft length, which is 0 where it counted no draft; and of an open loop the rate
    that was served while requests came, without the drain at the end, in the place of the most that it allowed at once."""
    try:
        drafts, completed = result.get("spec_decode_num_drafts") or 0, max(1, result["completed"])
        result["gamma"] = round(result["spec_decode_draft_tokens"] / drafts) if drafts else 0
        result["tokens"] = result["total_output_tokens"] / completed
        result["prompt_tokens"] = result.get("total_input_tokens", 0) / completed
        if result.get("request_rate") in (None, "inf", float("inf")):
            result.pop("request_rate", None)
        else:
            result.pop("max_concurrency", None)
            ttft, tpot = (result.get(f"mean_{name}_ms", 0.0) / 1e3 for name in ("ttft", "tpot"))
            result["latency_s"] = ttft + tpot * (result["tokens"] - 1)
            result["request_throughput"] = completed / max(result["duration"] - result["latency_s"], 1e-9)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: not a whole result of `vllm bench serve` ({error})") from None
    return {name: value for name, value in result.items() if value is not None}


_GUIDELLM = {  # what it calls them, all under `metrics`
    "requests": "request_concurrency",
    "served_rate": "requests_per_second",
    "tpot_ms": "inter_token_latency_ms",
    "ttft_ms": "time_to_first_token_ms",
    "latency": "request_latency",
    "tokens": "output_token_count",
    "prompt_tokens": "prompt_token_count",
}


def _guidellm(path: Path, number: int, benchmark: Any) -> dict[str, Any]:
    """Means over requests that came to their end; present were all. It knows nothing of drafts."""
    try:
        metrics = benchmark["metrics"]
        return {
            ours: metrics[theirs]["total" if ours == "requests" else "successful"]["mean"]
            for ours, theirs in _GUIDELLM.items()
        }
    except (KeyError, TypeError):
        raise UsageError(f"{path}: result {number}: a GuideLLM report of another schema; give a table as CSV") from None


def _parse(row: Mapping[str, Any], where: str, columns: Mapping[str, str]) -> dict[str, float]:
    """Numbers by the names of `COLUMNS`; times in seconds."""
    found = {}
    for name, aliases in COLUMNS.items():
        column = columns.get(name) or next((one for one in aliases if one in row), None)
        if column is None:
            continue
        if column not in row:
            raise UsageError(f"{where}: no column '{column}'; there are {', '.join(row)}")
        try:
            value = float(row[column])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{where}: {column} is '{row[column]}', which is no number")
        found[name] = value / 1e3 if name in _TIMES and re.search(r"(?<![a-z])ms(?![a-z])", column.lower()) else value
    return found


def _measurement(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> Measurement:
    for name in _TIMES:
        if not row.get(name, 1.0) > 0:
            raise UsageError(
                f"{where}: {name} is {row[name]:g} s, which is no time that anything takes; mend or leave it out"
            )
    for name in _SHARES:
        if not 0 <= row.get(name, 0.0) <= 1:
            raise UsageError(f"{where}: {name} is {row[name]:g}; give a share from 0 to 1 (70% is 0.7)")
    if (asked := row.get("rate")) and (served := row.get("served_rate")) and served < _MIN_SERVED * asked:
        raise UsageError(
            f"{where}: {served:.3g} requests a second were served of {asked:.3g}: beyond stability, so its times only say how "
            "long it was measured; leave it out"
        )
    if row.get("tpot", 0.0) > _MAX_TPOT:
        raise UsageError(
            f"{where}: a token takes {row['tpot']:g} s; if these are milliseconds, call the column so, such as tpot_ms"
        )
    gamma = row.get("gamma", 0.0)
    if gamma < 0 or gamma != int(gamma):
        raise UsageError(f"{where}: a draft length of {gamma:g}; give whole numbers from 0")
    length = _tokens_per_step(row, int(gamma), where)
    requests, token = _requests(row, where, given), _token_seconds(row, where, given)
    if not 0 < requests <= _MOST_REQUESTS:
        raise UsageError(f"{where}: {requests:g} requests at once; give more than 0, and at most {_MOST_REQUESTS:,}")
    if not token > 0:
        raise UsageError(f"{where}: a token takes {token:g} s, which is no time that anything takes")
    return Measurement(
        where=where,
        requests=requests,
        gamma=int(gamma),
        tokens_per_step=length,
        step_seconds=token * length,
        output_tokens=row.get("tokens"),
        ttft=row.get("ttft"),
    )


def _tokens_per_step(row: Mapping[str, float], gamma: int, where: str) -> float:
    if gamma == 0 and row.get("acceptance_length", 1.0) > _MAX_PLAIN_TOKENS:
        said = (
            "its draft length is 0"
            if "gamma" in row
            else "nothing says its draft length; name a column by --column gamma=NAME"
        )
        raise UsageError(f"{where}: {row['acceptance_length']:g} tokens a step, and {said}")
    if gamma == 0:
        return 1.0
    if "acceptance_length" in row:
        length = row["acceptance_length"]
    elif "acceptance_rate" in row:
        length = iid_tokens_per_call(row["acceptance_rate"], gamma)
    elif "draft_acceptance_rate" in row:
        length = 1 + gamma * row["draft_acceptance_rate"]
    else:
        raise UsageError(
            f"{where}: drafts {gamma} tokens, and nothing says how many are accepted; name a column by "
            "--column acceptance_length=NAME (or acceptance_rate, draft_acceptance_rate)"
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(f"{where}: {length:g} tokens a step at draft length {gamma}; there can be 1 to {gamma + 1}")
    return length


def _requests(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> float:
    """By Little's law where the table is of rates: what arrives at random meets so many others, and is one more itself."""
    rate = row.get("served_rate", row.get("rate"))
    if "requests" in row:
        return row["requests"]
    if rate is not None and "latency" in row:
        return 1 + rate * row["latency"]
    raise UsageError(
        f"{where}: nothing says how many requests are served at once, nor at which rate they come and how long they take; there "
        f"are {_shorten(given)}; name a column by --column requests=NAME (or rate=NAME and latency=NAME)"
    )


def _token_seconds(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> float:
    """From one token of a request to its next."""
    if "tpot" in row:
        return row["tpot"]
    if "latency" in row and row.get("tokens", 0) > 1:
        return (row["latency"] - row.get("ttft", 0.0)) / (row["tokens"] - 1)
    if row.get("throughput", 0) > 0 and "requests" in row:
        wait = row.get("ttft", 0.0) / row["tokens"] if row.get("tokens", 0) > 1 else 0.0  # of a first token, on each
        return row["requests"] / row["throughput"] - wait
    raise UsageError(
        f"{where}: nothing says what a token takes; there are {_shorten(given)}; name a column by --column tpot=NAME (or latency "
        "with tokens, or throughput)"
    )


def _shorten(row: Mapping[str, Any]) -> str:
    names = list(row)
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")

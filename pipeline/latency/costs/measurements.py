"""Measurements of a server under load: CSV tables, results of `vllm bench serve`, GuideLLM reports.

A step is one target pass with the draft passes before it. Step time = TPOT * tokens per step; it includes prefills of other
requests.
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
from pipeline.errors import UsageError, printable

# Quantities and the column names under which they are found; the first match is used. Times are in milliseconds if the column
# name contains `ms`, else in seconds.
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
_MAX_PLAIN_TOKENS = 1.05  # tokens per step that still count as plain decoding (rounding)
_MAX_TPOT = 3.0  # seconds per token above which the unit is assumed to be wrong
_MOST_REQUESTS = 100_000
MOST_GAMMA = 1_000
_MIN_SERVED = 0.95  # completed / offered load below which the server was overloaded


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
    """Read every row of a file. `columns` maps a quantity of `COLUMNS` to a column name, `values` gives quantities that are not
    in the file. UsageError, with file and row, for invalid content."""
    for given in (columns or {}, values or {}):
        if unknown := next((name for name in given if name not in COLUMNS), None):
            raise UsageError(f"{path}: '{unknown}' is not a known quantity; known are {', '.join(COLUMNS)}")
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no measurements in the file")
    if unsound := next((name for name, value in (values or {}).items() if not math.isfinite(value)), None):
        raise UsageError(f"{path}: {unsound} is not a number")
    parsed, values = [(_parse(row, where, columns or {}), where, row) for where, row in rows], dict(values or {})
    for parsed_row, where, _ in parsed if path.suffix not in _JSON else ():
        if conflict := next((name for name, value in values.items() if parsed_row.get(name, value) != value), None):
            raise UsageError(
                f"{where}: the row has {conflict} {parsed_row[conflict]:g}; remove {conflict}={values[conflict]:g}"
            )
    return [_measurement(parsed_row | values, where, row) for parsed_row, where, row in parsed]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"{path}: {reason}") from None
    if path.suffix in _JSON:
        for number, result in enumerate(_results(path, text), 1):
            yield f"{path}: result {number}", result
    else:
        lines = text.splitlines()
        delimiter = max(",;\t", key=lines[0].count) if lines else ","
        try:
            for number, row in enumerate(csv.DictReader(lines, delimiter=delimiter), 2):
                yield f"{path}: line {number}", {key: value for key, value in row.items() if key is not None and value}
        except csv.Error as error:
            raise UsageError(f"{path}: not a CSV table: {error}") from None


def _results(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """Results of `vllm bench serve` (one, a list, or one per line) or of a GuideLLM report."""
    try:
        found = _json(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not valid JSON or JSON lines") from None
    if isinstance(found, Mapping) and isinstance(found.get("benchmarks"), Sequence):
        yield from (_guidellm(path, number, item) for number, item in enumerate(found["benchmarks"], 1))
        return
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, Mapping) or "completed" not in item:
            raise UsageError(f"{path}: neither a result of `vllm bench serve` nor a GuideLLM report; convert it to CSV")
        yield _vllm(path, dict(item))


def _json(text: str) -> Any:
    """JSON, or JSON lines as `vllm bench serve --append-result` writes them."""
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _vllm(path: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Add quantities that follow from the totals: mean lengths and the draft length (0 if no drafts were counted). For an open
    loop, replace max_concurrency, which is only a limit, by the throughput without the drain after the last arrival."""
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
        raise UsageError(f"{path}: incomplete result of `vllm bench serve` ({error})") from None
    return {name: value for name, value in result.items() if value is not None}


_GUIDELLM = {  # our names to GuideLLM's keys under `metrics`
    "requests": "request_concurrency",
    "served_rate": "requests_per_second",
    "tpot_ms": "inter_token_latency_ms",
    "ttft_ms": "time_to_first_token_ms",
    "latency": "request_latency",
    "tokens": "output_token_count",
    "prompt_tokens": "prompt_token_count",
}


def _guidellm(path: Path, number: int, benchmark: Any) -> dict[str, Any]:
    """Means over successful requests; concurrency is over all requests. GuideLLM reports have no drafts."""
    try:
        metrics = benchmark["metrics"]
        return {
            ours: metrics[theirs]["total" if ours == "requests" else "successful"]["mean"]
            for ours, theirs in _GUIDELLM.items()
        }
    except (KeyError, TypeError):
        raise UsageError(f"{path}: result {number}: unsupported GuideLLM schema; convert it to CSV") from None


def _parse(row: Mapping[str, Any], where: str, columns: Mapping[str, str]) -> dict[str, float]:
    """Quantities of a row, by the names of `COLUMNS`; times in seconds."""
    found = {}
    for name, aliases in COLUMNS.items():
        column = columns.get(name) or next((one for one in aliases if one in row), None)
        if column is None:
            continue
        if column not in row:
            raise UsageError(f"{where}: no column '{column}'; columns are {_shorten(row)}")
        try:
            value = float(row[column])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{where}: {column} is {str(row[column])!r}, which is not a number")
        found[name] = value / 1e3 if name in _TIMES and re.search(r"(?<![a-z])ms(?![a-z])", column.lower()) else value
    return found


def _measurement(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> Measurement:
    for name in _TIMES:
        if not row.get(name, 1.0) > 0:
            raise UsageError(f"{where}: {name} is {row[name]:g} s, but must be above 0; correct or remove it")
    for name in _SHARES:
        if not 0 <= row.get(name, 0.0) <= 1:
            raise UsageError(f"{where}: {name} is {row[name]:g}; give a value from 0 to 1 (70% is 0.7)")
    if (asked := row.get("rate")) and (served := row.get("served_rate")) and served < _MIN_SERVED * asked:
        raise UsageError(
            f"{where}: completed {served:.3g} of {asked:.3g} requests/s: offered load exceeds capacity, so latency depends on "
            "the length of the test; remove this row"
        )
    if row.get("tpot", 0.0) > _MAX_TPOT:
        raise UsageError(
            f"{where}: TPOT is {row['tpot']:g} s; if these are milliseconds, put ms into the column name, such as tpot_ms"
        )
    gamma = row.get("gamma", 0.0)
    if not 0 <= gamma <= MOST_GAMMA or gamma != int(gamma):
        raise UsageError(f"{where}: draft length {gamma:g}; give a whole number from 0 to {MOST_GAMMA:,}")
    length = _tokens_per_step(row, int(gamma), where)
    requests, token = _requests(row, where, given), _token_seconds(row, where, given)
    if not 0 < requests <= _MOST_REQUESTS:
        raise UsageError(f"{where}: {requests:g} concurrent requests; give more than 0 and at most {_MOST_REQUESTS:,}")
    if not token > 0:
        raise UsageError(f"{where}: TPOT is {token:g} s, but must be above 0")
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
            "the draft length is 0"
            if "gamma" in row
            else "the draft length is unknown; name its column with --column gamma=NAME"
        )
        raise UsageError(f"{where}: {row['acceptance_length']:g} tokens per step, but {said}")
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
            f"{where}: draft length {gamma}, but the acceptance is unknown; name its column with "
            "--column acceptance_length=NAME (or acceptance_rate, draft_acceptance_rate)"
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(f"{where}: {length:g} tokens per step at draft length {gamma}; possible are 1 to {gamma + 1}")
    return length


def _requests(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> float:
    """Concurrent requests; from rate and latency by Little's law, plus the request itself (a Poisson arrival sees the mean)."""
    rate = row.get("served_rate", row.get("rate"))
    if "requests" in row:
        return row["requests"]
    if rate is not None and "latency" in row:
        return 1 + rate * row["latency"]
    raise UsageError(
        f"{where}: the number of concurrent requests is unknown; columns are {_shorten(given)}; name its column with "
        "--column requests=NAME (or rate=NAME and latency=NAME)"
    )


def _token_seconds(row: Mapping[str, float], where: str, given: Mapping[str, Any]) -> float:
    """TPOT in seconds."""
    if "tpot" in row:
        return row["tpot"]
    if "latency" in row and row.get("tokens", 0) > 1:
        return (row["latency"] - row.get("ttft", 0.0)) / (row["tokens"] - 1)
    if row.get("throughput", 0) > 0 and "requests" in row:
        wait = row.get("ttft", 0.0) / row["tokens"] if row.get("tokens", 0) > 1 else 0.0  # TTFT per token
        return row["requests"] / row["throughput"] - wait
    raise UsageError(
        f"{where}: TPOT is unknown; columns are {_shorten(given)}; name its column with --column tpot=NAME (or latency with "
        "tokens, or throughput)"
    )


def _shorten(row: Mapping[str, Any]) -> str:
    names = list(row)
    return printable(", ".join(names[:12])) + (", ..." if len(names) > 12 else "")

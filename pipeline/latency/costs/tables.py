"""Files of measurements, row by row: CSV tables, results of `vllm bench serve`, GuideLLM reports.

What the columns mean is `columns.py`.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError

_JSON = (".json", ".jsonl")
_DRAFT_LENGTHS = ("gamma", "k", "num_speculative_tokens")  # as `--metadata` of `vllm bench serve` may name them
_UNLIMITED = (None, "inf", float("inf"))  # request rates of a closed loop


def is_table(path: Path) -> bool:
    """Whether this is a CSV table, whose columns its user named."""
    return path.suffix not in _JSON


def read_rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Each row by column, with the file and line that error messages name. UsageError for any other content, and for none."""
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no measurements in the file")
    return rows


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(f"{path}: {reason}") from None
    if not is_table(path):
        for number, result in enumerate(_results(path, text), 1):
            yield f"{path}: result {number}", result
        return
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
    """Add quantities that follow from the totals: mean lengths, and the draft length by the counters (0 if no drafts were
    counted) unless `--metadata` states it, and the mean latency. For an open loop, replace max_concurrency, which is only a
    limit, by the throughput without the drain after the last arrival."""
    try:
        drafts, completed = result.get("spec_decode_num_drafts") or 0, max(1, result["completed"])
        if not any(name in result for name in _DRAFT_LENGTHS):
            result["gamma"] = round(result["spec_decode_draft_tokens"] / drafts) if drafts else 0
        result["tokens"] = result["total_output_tokens"] / completed
        result["prompt_tokens"] = result.get("total_input_tokens", 0) / completed
        closed = result.get("request_rate") in _UNLIMITED
        if not closed or {"mean_ttft_ms", "mean_tpot_ms"} <= result.keys():
            result["latency_s"] = (result["mean_ttft_ms"] + result["mean_tpot_ms"] * (result["tokens"] - 1)) / 1e3
        if closed:
            result.pop("request_rate", None)
        else:
            result.pop("max_concurrency", None)
            result["request_throughput"] = completed / max(result["duration"] - result["latency_s"], 1e-9)
            result.pop("output_throughput", None)  # over the whole duration, so it is low by the drain
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: incomplete result of `vllm bench serve` ({error})") from None
    return {name: value for name, value in result.items() if value is not None}


GUIDELLM = {  # our names to GuideLLM's keys under `metrics`
    "concurrency": "request_concurrency",
    "served_rate": "requests_per_second",
    "tpot_ms": "inter_token_latency_ms",  # time after the first token / (tokens - 1)
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
            ours: metrics[theirs]["total" if ours == "concurrency" else "successful"]["mean"]
            for ours, theirs in GUIDELLM.items()
        }
    except (KeyError, TypeError):
        raise UsageError(f"{path}: result {number}: unsupported GuideLLM schema; convert it to CSV") from None

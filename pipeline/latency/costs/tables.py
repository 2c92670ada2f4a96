"""Files of measurements, row by row: CSV tables, results of `vllm bench serve`, GuideLLM reports.

What the columns mean is `columns.py`, how a CSV table is written `csv_rows.py`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.columns import columns_read, plain_name
from pipeline.latency.costs.csv_rows import read_csv
from pipeline.store.json_text import parse_json, read_text

_JSON = (".json", ".jsonl")
_OF_METRICS = ("metric", "metrics", "statistic")  # first columns of a table with a row for each
_SHOWN = 80  # characters of a header in a message
_PRINTED = re.compile(r"={3,}[^=]*[Bb]enchmark|(Mean|Median|P99|Avg|Average) [A-Za-z ]+(\([a-z]+\))?: +[\d.]+")
_FAILED = re.compile(  # requests, in a table: whole names, since `slo_failed` or `error_code` count something else
    r"(num_)?(failed|failures|errors|errored)(_requests|_prompts|_count)?|(num_)?requests_(failed|errored)|error_(count|requests)"
)
_SUCCEEDED = re.compile(
    r"(num_)?(success\w*|succeed\w*|completed|ok)(_requests|_count)?|(num_)?requests_(completed|ok)"
)
_SHARE = re.compile(r"rate|%|pct|percent|ratio|std")
_BETWEEN = re.compile(r"(?<=[}\]])\s*\n\s*(?=[{\[])")  # two documents
_MOST_FAILED = 0.05  # of the requests of a test
_SAME_LENGTH = 0.1  # difference of mean draft tokens from a whole number that the ends of outputs make
_SAME_TOKENS = 1.5  # ratio of two counts of the same output tokens from which one has counted something else
_TOTALS = ("completed", "duration", "total_output_tokens")  # of a result of `vllm bench serve`
_TIMES = ("mean_tpot_ms", "mean_itl_ms")
FROM_TOTALS = (*_TOTALS, "max_concurrent_requests", "burstiness", "spec_decode_num_drafts", "spec_decode_draft_tokens")


@dataclass(frozen=True)
class Cells:
    """One row of a file."""

    where: str  # file and line, for error messages
    cells: Mapping[str, Any]  # by column; those with a value
    names: tuple[str, ...]  # of all columns; one that is there twice has both
    computed: Mapping[str, float] = field(default_factory=dict)  # by quantity, from several columns


def is_table(path: Path) -> bool:
    """Whether this is a CSV table, whose columns its user named."""
    return path.suffix not in _JSON


def read_rows(path: Path) -> list[Cells]:
    """Each row that is not empty. UsageError for any other content, and for none."""
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no measurements in the file; give one with a row for each measurement")
    return rows


def _rows(path: Path) -> Iterator[Cells]:
    try:
        text = read_text(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a text file ({error}); save it as UTF-8") from None
    if not is_table(path):
        for number, (cells, computed) in enumerate(_results(path, text), 1):
            yield Cells(f"{path}: result {number}", cells, tuple(cells), computed)
        return
    table = read_csv(text, str(path))
    known = columns_read(dict.fromkeys(table.names), dict.fromkeys(table.names), {}, str(path))
    if not known and (printed := next((line for line in text.splitlines() if _PRINTED.match(line.strip())), None)):
        raise UsageError(
            f"{path}: what a benchmark prints ('{printable(printed.strip()[:_SHOWN])}'), not its file; give the JSON it saves "
            "(`vllm bench serve --save-result`, SGLang's --output-file), or a table with a row for each load"
        )
    if len(table.names) == 1:
        raise UsageError(
            f"{path}: only one column, '{printable(table.names[0][:_SHOWN])}'; separate the columns with commas, semicolons "
            "or tabs"
        )
    if table.names and table.names[0].lower() in _OF_METRICS:
        raise UsageError(
            f"{path}: a row for each metric ('{printable(table.names[0][:_SHOWN])}' is its first column), as genai-perf writes "
            "it; write a row for each load, with the metrics and the concurrency as columns"
        )
    for row in table.rows:
        where, cells = f"{path}: line {row.line}", dict(row.cells)
        totals = set(_TOTALS) <= cells.keys()  # as `vllm bench` writes its results into a table
        if totals:
            _check_result(where, cells, table=True)
        else:
            _check_counted(where, cells)
        yield Cells(where, cells, table.names, _of_totals(where, cells) if totals else {})


def _results(path: Path, text: str) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Results of `vllm bench serve` (one, a list, or one per line) or of a GuideLLM report."""
    try:
        found = json_documents(text)
    except ValueError as error:
        raise UsageError(
            f"{path}: not valid JSON or JSON lines ({error}); give the file as the benchmark wrote it"
        ) from None
    if isinstance(found, Mapping) and isinstance(found.get("benchmarks"), Sequence):
        yield from ((_guidellm(path, number, item), {}) for number, item in enumerate(found["benchmarks"], 1))
        return
    for number, item in enumerate(found if isinstance(found, list) else [found], 1):
        if not isinstance(item, Mapping) or "completed" not in item:
            raise UsageError(
                f"{path}: neither a result of `vllm bench serve` nor a GuideLLM report; write a CSV table "
                "with a row for each load: concurrency,k,tpot_ms,ttft_ms,output_tok_s,acceptance_length"
            )
        where = f"{path}: result {number}"
        _check_result(where, item)
        yield _bench_serve(where, dict(item))


def json_documents(text: str) -> Any:
    """JSON, or one document after another: JSON lines as `vllm bench serve --append-result` writes them, or `cat *.json`. No
    document has an object after another without a comma. ValueError for anything else."""
    try:
        return parse_json(text, foreign=True)
    except ValueError:
        documents = [parse_json(one, foreign=True) for one in _BETWEEN.split(text.strip())]
        return [item for one in documents for item in (one if isinstance(one, list) else [one])]


def _check_result(where: str, result: Mapping[str, Any], table: bool = False) -> None:
    """UsageError for a result that says itself that it is none: most of its requests failed, its answers were not streamed, or
    its output tokens are not the tokens of its answers. A table may have its times under other names."""
    completed, failed = _count(result, "completed"), _count(result, "failed")
    _check_failed(where, completed, failed or max(0.0, _count(result, "num_prompts") - completed))
    tokens = _count(result, "total_output_tokens")
    times = [_count(result, name) for name in _TIMES if not table or name in result]
    if tokens > completed and (times or not table) and not any(times):
        raise UsageError(f"{where}: no time per token: the answers were not streamed; run the benchmark with streaming")
    texts = _count(result, "total_output_tokens_retokenized")
    counters = _count(result, "spec_decode_num_drafts") + _count(result, "spec_decode_accepted_tokens")
    for other, what in ((texts, "its texts have"), (counters, "the server's counters say")):
        if tokens and other > _SAME_TOKENS * tokens:
            raise UsageError(
                f"{where}: {tokens:,.0f} output tokens, and {what} {other:,.0f}: the benchmark counted the chunks of streams, "
                "which hold several tokens each, so times per token are too long; count by `usage`, or use a later version"
            )


def _check_counted(where: str, cells: Mapping[str, Any]) -> None:
    """As `_check_failed`, by columns of a table that count failed requests and others."""
    counts = {plain_name(name): _count(cells, name) for name in cells if not _SHARE.search(name.lower())}
    whole = {name: count for name, count in counts.items() if count == int(count)}
    failed = [(count, name) for name, count in whole.items() if _FAILED.fullmatch(name)]
    completed = [(count, name) for name, count in whole.items() if _SUCCEEDED.fullmatch(name)]
    if failed and completed:
        (most, of), (others, of_others) = max(failed), max(completed)
        _check_failed(where, others, most, f" by '{of}' and '{of_others}'")


def _check_failed(where: str, completed: float, failed: float, by: str = "") -> None:
    if failed > _MOST_FAILED * (completed + failed):
        raise UsageError(
            f"{where}: {failed:,.0f} of {completed + failed:,.0f} requests failed{by}, so the times are not those of this load; "
            "mend the test, or remove the result"
        )


def _count(result: Mapping[str, Any], name: str) -> float:
    """A number of requests, tokens or seconds; 0 where it is not stated."""
    try:
        return max(0.0, _number(result.get(name)))
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _number(found: Any) -> float:
    """TypeError or ValueError for anything else."""
    if isinstance(found, bool) or not math.isfinite(value := float(found)):
        raise ValueError(f"{found!r} is not a number")
    return value


def _bench_serve(where: str, result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Cells of a result of `vllm bench serve` or of SGLang's `bench_serving`, and what follows from its totals."""
    cells, computed = {name: value for name, value in result.items() if value is not None}, _of_totals(where, result)
    if {"accept_length", "max_concurrency"} <= result.keys():  # SGLang's own is a mean that was measured
        cells.pop("concurrency", None)
    if cells.get("request_rate") == "trace" and "served_rate" in computed:  # SGLang: by the times of a log
        del cells["request_rate"]
        computed["rate"] = computed["served_rate"]
    return cells, computed


def _of_totals(where: str, result: Mapping[str, Any]) -> dict[str, float]:
    """Quantities by the totals of a test: mean output length and latency, requests per second, the most requests at once
    (`most`), the arrivals less those that bursts take off (`arrivals`), and the draft length by the counters."""
    try:
        tokens, completed = _number(result["total_output_tokens"]), _number(result["completed"])
        drafts, drafted = (_count(result, f"spec_decode_{name}") for name in ("num_drafts", "draft_tokens"))
        length = drafted / drafts if drafts else 0.0
        computed = {"tokens": tokens / max(1.0, completed)}
        if (
            drafts and abs(length - round(length)) <= _SAME_LENGTH
        ):  # else it changed during the test, or outputs are short
            computed["gamma"] = float(round(length))
        if duration := _count(result, "duration"):
            computed["served_rate"] = completed / duration
            computed["most"] = min(completed, _count(result, "max_concurrent_requests") or completed)
            computed["arrivals"] = max(0.0, completed) * (_count(result, "burstiness") or 1.0)
        if tpot := _count(result, "mean_tpot_ms"):
            computed["latency"] = (_count(result, "mean_ttft_ms") + tpot * (computed["tokens"] - 1)) / 1e3
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{where}: incomplete result of `vllm bench serve` ({error}); run it again with --save-result"
        ) from None
    return computed


GUIDELLM = {  # our names to GuideLLM's keys under `metrics`
    "concurrency": "request_concurrency",
    "served_rate": "requests_per_second",
    "tpot_ms": "inter_token_latency_ms",  # time after the first token / (tokens - 1)
    "ttft_ms": "time_to_first_token_ms",
    "latency": "request_latency",
    "tokens": "output_token_count",
}


def _guidellm(path: Path, number: int, benchmark: Any) -> dict[str, Any]:
    """Means over successful requests; concurrency is over all requests. GuideLLM reports have no drafts."""
    try:
        metrics = benchmark["metrics"]
        totals = metrics.get("request_totals") or {}
        _check_failed(f"{path}: result {number}", _count(totals, "successful"), _count(totals, "errored"))
        return {
            ours: metrics[theirs]["total" if ours == "concurrency" else "successful"]["mean"]
            for ours, theirs in GUIDELLM.items()
        }
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: result {number}: unsupported GuideLLM schema; convert it to CSV") from None

"""Files of measurements, row by row: CSV tables, results of `vllm bench serve` and of other tools.

What the columns mean is `columns.py`, how a CSV table is written `csv_rows.py`, what nested results hold `tool_results.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.columns import columns_read
from pipeline.latency.costs.csv_rows import read_csv
from pipeline.latency.costs.tool_results import TOOLS, one_by_one, read_result, tool_of
from pipeline.latency.costs.totals import TOTALS, check_counted, check_result, of_totals
from pipeline.store.json_text import parse_json, read_text

_JSON = (".json", ".jsonl")
_OF_METRICS = ("metric", "metrics", "statistic")  # first columns of a table with a row for each
_SHOWN = 80  # characters of a header in a message
_PRINTED = re.compile(r"={3,}[^=]*[Bb]enchmark|(Mean|Median|P99|Avg|Average) [A-Za-z ]+(\([a-z]+\))?: +[\d.]+")
_BETWEEN = re.compile(r"(?<=[}\]])\s*\n\s*(?=[{\[])")  # two documents


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
        totals = set(TOTALS) <= cells.keys()  # as `vllm bench` writes its results into a table
        if totals:
            check_result(where, cells, table=True)
        else:
            check_counted(where, cells)
        yield Cells(where, cells, table.names, of_totals(where, cells) if totals else {})


def _results(path: Path, text: str) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Results of `vllm bench serve` (one, a list, or one per line), or of the tools of `tool_results.py`."""
    try:
        documents = json_documents(text)
    except ValueError as error:
        raise UsageError(
            f"{path}: not valid JSON or JSON lines ({error}); give the file as the benchmark wrote it"
        ) from None
    for number, item in enumerate(one_by_one(documents), 1):
        where = f"{path}: result {number}"
        if isinstance(item, Mapping) and (tool := tool_of(item)):
            yield read_result(tool, item, where)
            continue
        if not isinstance(item, Mapping) or "completed" not in item:
            raise UsageError(
                f"{path}: no result of {', '.join(('`vllm bench serve`', *TOOLS))}; write a CSV table "
                "with a row for each load: concurrency,k,tpot_ms,ttft_ms,output_tok_s,acceptance_length"
            )
        check_result(where, item)
        yield _bench_serve(where, dict(item))


def json_documents(text: str) -> Any:
    """JSON, or one document after another: JSON lines as `vllm bench serve --append-result` writes them, or `cat *.json`. No
    document has an object after another without a comma. ValueError for anything else."""
    try:
        return parse_json(text, foreign=True)
    except ValueError:
        documents = [parse_json(part, foreign=True) for part in _BETWEEN.split(text.strip())]
        return [item for document in documents for item in (document if isinstance(document, list) else [document])]


def _bench_serve(where: str, result: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """Cells of a result of `vllm bench serve` or of SGLang's `bench_serving`, and what follows from its totals."""
    cells, computed = {name: value for name, value in result.items() if value is not None}, of_totals(where, result)
    if {"accept_length", "max_concurrency"} <= result.keys():  # SGLang's own is a mean that was measured
        cells.pop("concurrency", None)
    if cells.get("request_rate") == "trace" and "served_rate" in computed:  # SGLang: by the times of a log
        del cells["request_rate"]
        computed["rate"] = computed["served_rate"]
    return cells, computed

"""Measurements of a server under load, from the columns of a table. Pure, but for reading the file.

A step is one target pass with the draft passes before it. Its time includes prefills of other requests.
"""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.arrivals import left_at_end, with_kind_of_load
from pipeline.latency.costs.columns import (
    ABOVE_ZERO,
    COLUMNS,
    SHARES,
    TIMES,
    check_names,
    columns_read,
    is_median,
    listed,
    parse_row,
    told,
    unread,
    without_factors,
)
from pipeline.latency.costs.in_batch import (
    USUAL_TOKENS,
    batch,
    decoding_shares,
    mean_step,
    more_than_possible,
    requests_per_place,
)
from pipeline.latency.costs.kind_of_throughput import check_throughput
from pipeline.latency.costs.offers import offered
from pipeline.latency.costs.output_rounds import tokens_per_round
from pipeline.latency.costs.row import (
    AGREES,
    MeasuredRow,
    acceptance_known,
    check_token_seconds,
    counts_own_token,
    ratio,
    token_seconds,
    tokens_per_step,
)
from pipeline.latency.costs.tables import is_table, read_rows
from pipeline.latency.costs.totals import FROM_TOTALS

MOST_GAMMA, MOST_REQUESTS = 128, 100_000
_LONG_TTFT = 5.0  # ratio to that of one request from which requests may have waited
_TIMES_AGREE = 3.0  # ratio of latency and its parts above which a unit is assumed to be wrong
_MAX_RATIO = 500.0  # of TTFT of one request to the time per token, and of a latency with unknown TTFT to its parts


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One load at one draft length."""

    where: str  # file and row, for error messages
    requests: float  # in the batch; of a closed loop: its concurrency
    gamma: int  # draft length; 0 is plain decoding
    tokens_per_step: float  # of each request
    step_seconds: float
    token_seconds: float | None = None  # time per token after the first, where it is not step / tokens per step
    output_tokens: float | None = None  # mean output length
    ttft: float | None = None  # time to first token, seconds
    requests_per_place: float | None = None  # of a closed loop: how many requests each place of the batch served
    in_batch: float | None = (
        None  # mean number of requests in the batch of a closed loop, where it is known to be smaller
    )
    isolated: bool = False  # the step was measured alone, so it contains no prefills of other requests
    throughput: float | None = None  # tokens per second of all requests, as the table has it
    acceptance_known: bool = (
        True  # False: steps are those in which all draft tokens are accepted, at the right time per token
    )
    unread: Mapping[str, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # other cells of its row, and its file


@dataclass(frozen=True)
class Table:
    """A file's measurements, and how it was read: sentences for its user."""

    measured: list[Measurement]
    notes: list[str] = field(default_factory=list)


def read_measurements(
    path: Path, columns: Mapping[str, str] | None = None, values: Mapping[str, float] | None = None
) -> Table:
    """Read every row of a file. `columns` maps a quantity of `columns.COLUMNS` to a column name, `values` gives quantities that
    are not in the file. UsageError, with file and row, for invalid content."""
    columns, values = dict(columns or {}), dict(values or {})
    check_names([*columns, *values], path)
    if unsound := next((name for name, value in values.items() if not math.isfinite(value)), None):
        raise UsageError(f"{path}: {unsound} is not a number; correct it")
    table_rows = read_rows(path)
    columns, factors = without_factors(columns, table_rows[0].names)
    rows = []
    for given in table_rows:
        read = columns_read(given.cells, given.names, columns, given.where)
        parsed = parse_row(given.cells, read, factors, given.where)
        if other := next((name for name in values if parsed.get(name, values[name]) != values[name]), None):
            raise UsageError(f"{given.where}: the row has {other} {parsed[other]:g}; remove {other}={values[other]:g}")
        used = {name: column for name, column in read.items() if name not in values}
        row = MeasuredRow(given.where, with_kind_of_load({**given.computed, **parsed, **values}), used, given.cells)
        _check(row)
        rows.append(row)
    said_of_unread = offered(rows, path) if is_table(path) else []
    check_throughput(rows, path)
    shares, kind = decoding_shares(rows), (counts_own_token(rows), acceptance_known(rows))
    measured = [_measurement(row, share, *kind, path.name) for row, share in zip(rows, shares, strict=True)]
    said = Counter(note for _, notes in measured for note in notes)
    return Table(
        [each for each, _ in measured],
        [
            *_said_of_columns(rows, factors, is_table(path)),
            *said_of_unread,
            *_said_of_waiting(
                [each for row, (each, _) in zip(rows, measured, strict=True) if "rate" not in row.values]
            ),
            *_said_of_gaps(rows, any(shares), is_table(path)),
            *more_than_possible(rows),
            *(note if times == len(rows) else f"{note} ({times} of {len(rows)} rows)" for note, times in said.items()),
        ],
    )


def _said_of_columns(rows: Sequence[MeasuredRow], factors: Mapping[str, float], table: bool) -> list[str]:
    """What was read as what in any row, and of a table, what was not read."""
    read = {name: column for row in rows for name, column in row.columns.items()}
    said = [f"read {told({name: read[name] for name in COLUMNS if name in read}, factors)}"] if read else []
    used = {name for row in rows if "most" in row.values for name in FROM_TOTALS}
    ignored = [
        name for name in dict.fromkeys(name for row in rows for name in unread(row.given, read)) if name not in used
    ]
    if table and ignored:
        said.append(f"not read: {listed(ignored)}")
    return said


def _said_of_gaps(rows: Sequence[MeasuredRow], used: bool, table: bool) -> list[str]:
    """Rows without a draft length in a table that has one or in results, and a throughput that is of another kind."""
    said, without = [], [row for row in rows if "gamma" not in row.values]
    if 0 < len(without) < len(rows):
        said.append(f"no draft length, so plain decoding ({len(without)} of {len(rows)} rows)")
    elif without and not table:
        said.append(
            "no draft is stated, so plain decoding; if there was one, append it: FILE:gamma=3,acceptance_length=2.4"
        )
    column = next((row.columns["throughput"] for row in rows if "throughput" in row.columns), None)
    if column is not None and not used:
        said.append(f"{column} is not tokens per second of all requests, by the other columns, so it was not used")
    return said


def _said_of_waiting(measured: Sequence[Measurement]) -> list[str]:
    """A long TTFT at heavy loads: requests may have waited for a place in the batch."""
    first = [measurement for measurement in measured if measurement.requests <= 1 and measurement.ttft]
    alone = [measurement.ttft for measurement in first if measurement.ttft]
    if not alone:
        return []
    low, high = (choose(first, key=lambda measurement: measurement.ttft or 0.0) for choose in (min, max))
    if max(alone) > _LONG_TTFT * min(alone):
        return [
            f"check {high.where}: TTFT of one request is {1e3 * max(alone):.3g} ms, in {low.where} {1e3 * min(alone):.3g} ms: "
            "a server's first requests, which compile, or other prompts; remove the rows that are not your traffic"
        ]

    def waited(measurement: Measurement) -> bool:
        decoding = (
            measurement.step_seconds / measurement.tokens_per_step * ((measurement.output_tokens or USUAL_TOKENS) - 1)
        )
        return (measurement.ttft or 0.0) > max(_LONG_TTFT * max(alone), decoding / 2)

    least = min((measurement.requests for measurement in measured if waited(measurement)), default=None)
    if least is None:
        return []
    return [
        f"from {least:g} requests on TTFT is more than half of the decoding time: if requests waited for a place in the batch "
        "(max_num_seqs), their number is not that of a step; remove these rows, or add a column of the running requests"
    ]


def _measurement(row: MeasuredRow, share: float, own: bool, known: bool, file: str) -> tuple[Measurement, list[str]]:
    """The measurement of a row, and what its user must know about how it was read."""
    gamma = int(row.values.get("gamma", 0.0))
    length, notes = tokens_per_step(row, gamma, own, known)
    per_round = tokens_per_round(length, gamma, row.values.get("tokens"))
    step, of_step = step_seconds(row, per_round, share)
    check_token_seconds(row, step / per_round)
    served = batch(row, step / per_round, per_round, share)
    _check_requests(row.where, served.requests)
    return Measurement(
        where=row.where,
        requests=served.requests,
        gamma=gamma,
        tokens_per_step=length,
        step_seconds=step,
        token_seconds=None if per_round == length else step / per_round,
        output_tokens=row.values.get("tokens"),
        ttft=row.values.get("ttft"),
        requests_per_place=requests_per_place(row.values, served.requests),
        in_batch=served.in_batch,
        throughput=row.values.get("throughput") if share else None,
        acceptance_known=known,
        unread={"file": file, **{name: row.given[name] for name in unread(row.given, row.columns)}},
    ), [*notes, *of_step, *served.notes]


def _check(row: MeasuredRow) -> None:
    values, where = row.values, row.where
    for name in TIMES:
        if not values.get(name, 1.0) > 0:
            raise UsageError(f"{where}: {name} is {values[name]:g} s, but must be above 0; correct or remove it")
    for name in ABOVE_ZERO:
        if not values.get(name, 1.0) > 0:
            raise UsageError(f"{where}: {name} is {values[name]:g}, but must be above 0; correct the row or remove it")
    for name in SHARES:
        if not 0 <= (value := values.get(name, 0.0)) <= 1:
            column = f"{name}={row.columns.get(name, name)}*0.01"
            percent = (
                f"; if it is in percent, give --column {shlex.quote(printable(column))}" if 1 < value <= 100 else ""
            )
            raise UsageError(f"{where}: {name} is {value:g}; give a value from 0 to 1 (70% is 0.7){percent}")
    for name in ("running", "concurrency"):
        _check_requests(where, values.get(name, 1.0))
    left_at_end(values, where)
    _check_times(values, where)
    gamma = values.get("gamma", 0.0)
    if not 0 <= gamma <= MOST_GAMMA or gamma != int(gamma):
        raise UsageError(
            f"{where}: draft length {gamma:g}; give a whole number from 0 to {MOST_GAMMA} (a schedule tries every length up to "
            "the longest, and the gain of one more token falls with each)"
        )


def _check_times(values: Mapping[str, float], where: str) -> None:
    """UsageError for times that contradict each other: one of them is in another unit."""
    milliseconds = "times in milliseconds need ms in the column's name, such as ttft_ms"
    if {"latency", "tokens", "tpot"} <= values.keys():
        parts = values.get("ttft", 0.0) + values["tpot"] * max(0.0, values["tokens"] - 1)
        most = _TIMES_AGREE if "ttft" in values else _MAX_RATIO
        if not parts / _TIMES_AGREE <= values["latency"] <= most * parts:
            raise UsageError(
                f"{where}: latency is {values['latency']:.3g} s, but TTFT and time per token make {parts:.3g} s; {milliseconds}"
            )
    alone = values.get("concurrency", values.get("running", math.inf)) <= 1
    if alone and "tpot" in values and values.get("ttft", 0.0) > _MAX_RATIO * values["tpot"]:
        raise UsageError(
            f"{where}: TTFT of one request is {values['ttft']:.3g} s, the time per token {values['tpot']:.3g} s; {milliseconds}"
        )


def _check_requests(where: str, requests: float) -> None:
    if not 0 < requests <= MOST_REQUESTS:
        raise UsageError(f"{where}: {requests:g} concurrent requests; give more than 0 and at most {MOST_REQUESTS:,}")


def step_seconds(row: MeasuredRow, length: float, share: float) -> tuple[float, list[str]]:
    """Seconds of a step with `length` tokens for each request; `share`: the `decoding_share` of the table. The mean
    time between two chunks of a stream is a step where an engine sends each step's tokens together, as vLLM does; some tables
    have the time per token under the same name."""
    values, notes = row.values, list[str]()
    if "step" in values:
        other = values.get("tpot", values["step"] / length) * length
        if ratio(values["step"], other) <= AGREES:
            return values["step"], []
        notes.append(
            f"{row.columns.get('step', 'step')} is not the time per token times tokens per step, so it was not used"
        )
    itl = values.get("itl")
    if itl is not None and not values.keys() & {"tpot", "latency", "throughput"}:
        return itl, [*notes, "the time between chunks was used as the time of a step, which it is in vLLM"]
    step = token_seconds(row) * length
    if itl is not None and ratio(itl, step) <= min(AGREES, ratio(itl, step / length)):
        return itl, notes
    if itl is not None and ratio(itl, step / length) > AGREES:
        notes.append(f"{row.columns.get('itl', 'itl')} is neither a step nor the time per token, so it was not used")
    if is_median(row.columns.get("tpot", "")):
        step, of_median = mean_step(row, step, length, share)
        notes += of_median
    return step, notes

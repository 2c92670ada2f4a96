"""Measurements of a server under load, from the columns of a table. Pure, but for reading the file.

A step is one target pass with the draft passes before it. Its time includes prefills of other requests.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.latency.costs.columns import (
    SHARES,
    TIMES,
    check_names,
    columns_read,
    parse_row,
    told,
    unread,
)
from pipeline.latency.costs.row import (
    Row,
    batch,
    mostly_full,
    requests_per_place,
    step_seconds,
    throughput_in_tokens,
    tokens_per_step,
)
from pipeline.latency.costs.tables import is_table, read_rows

MOST_GAMMA, MOST_REQUESTS = 128, 100_000
_MAX_TPOT = 3.0  # seconds per token above which the unit is assumed to be wrong
_MIN_SERVED = 0.95  # completed / offered load below which the server was overloaded


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One load at one draft length."""

    where: str  # file and row, for error messages
    requests: float  # mean number of requests in the batch
    gamma: int  # draft length; 0 is plain decoding
    tokens_per_step: float  # of each request
    step_seconds: float
    output_tokens: float | None = None  # mean output length
    ttft: float | None = None  # time to first token, seconds
    requests_per_place: float | None = None  # of a closed loop: how many requests each place of the batch served
    most_requests: float | None = None  # in the batch at once, where that is known and differs from the mean
    isolated: bool = False  # the step was measured alone, so it contains no prefills of other requests


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
        raise UsageError(f"{path}: {unsound} is not a number")
    rows = []
    for where, given in read_rows(path):
        read = columns_read(given, columns, where)
        parsed = parse_row(given, read, where)
        if is_table(path) and (
            other := next((name for name in values if parsed.get(name, values[name]) != values[name]), None)
        ):
            raise UsageError(f"{where}: the row has {other} {parsed[other]:g}; remove {other}={values[other]:g}")
        rows.append(Row(where, parsed | values, {name: one for name, one in read.items() if name not in values}, given))
    in_tokens = throughput_in_tokens(rows)
    found = [_measurement(row, in_tokens) for row in rows]
    said = Counter(note for _, notes in found for note in notes)
    return Table(
        [one for one, _ in found],
        [
            *_said_of_columns(rows),
            *(note if times == len(rows) else f"{note} ({times} of {len(rows)} rows)" for note, times in said.items()),
        ],
    )


def _said_of_columns(rows: Sequence[Row]) -> list[str]:
    """What was read as what, once for each set of columns."""
    found = list(dict.fromkeys(f"read {told(row.columns)}" for row in rows if row.columns))
    ignored = dict.fromkeys(name for row in rows for name in unread(row.given, row.columns))
    return found + [f"'{name}' was not read: it can be how many were sent in all" for name in ignored]


def _measurement(row: Row, in_tokens: bool) -> tuple[Measurement, list[str]]:
    """The measurement of a row, and what its user must know about how it was read."""
    _check(row)
    gamma = int(row.values.get("gamma", 0.0))
    length, notes = tokens_per_step(row, gamma)
    step, of_step = step_seconds(row, length)
    requests, of_batch = batch(row, step / length, in_tokens)
    _check_requests(row.where, requests)
    return Measurement(
        where=row.where,
        requests=requests,
        gamma=gamma,
        tokens_per_step=length,
        step_seconds=step,
        output_tokens=row.values.get("tokens"),
        ttft=row.values.get("ttft"),
        requests_per_place=requests_per_place(row.values),
        most_requests=row.values["concurrency"] if mostly_full(requests, row.values) else None,
    ), notes + of_step + of_batch


def _check(row: Row) -> None:
    values, where = row.values, row.where
    for name in TIMES:
        if not values.get(name, 1.0) > 0:
            raise UsageError(f"{where}: {name} is {values[name]:g} s, but must be above 0; correct or remove it")
    for name in SHARES:
        if not 0 <= values.get(name, 0.0) <= 1:
            raise UsageError(f"{where}: {name} is {values[name]:g}; give a value from 0 to 1 (70% is 0.7)")
    for name in ("running", "concurrency"):
        _check_requests(where, values.get(name, 1.0))
    if (asked := values.get("rate")) and (served := values.get("served_rate")) and served < _MIN_SERVED * asked:
        raise UsageError(
            f"{where}: completed {served:.3g} of {asked:.3g} requests/s: offered load exceeds capacity, so latency depends on "
            "the length of the test; remove this row"
        )
    if values.get("tpot", 0.0) > _MAX_TPOT:
        raise UsageError(
            f"{where}: TPOT is {values['tpot']:g} s; if these are milliseconds, put ms into the column name, such as tpot_ms"
        )
    gamma = values.get("gamma", 0.0)
    if not 0 <= gamma <= MOST_GAMMA or gamma != int(gamma):
        raise UsageError(
            f"{where}: draft length {gamma:g}; give a whole number from 0 to {MOST_GAMMA} (a schedule tries every length up to "
            "the longest, and the gain of one more token falls with each)"
        )


def _check_requests(where: str, requests: float) -> None:
    if not 0 < requests <= MOST_REQUESTS:
        raise UsageError(f"{where}: {requests:g} concurrent requests; give more than 0 and at most {MOST_REQUESTS:,}")

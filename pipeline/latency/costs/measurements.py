"""Measurements of a server under load, from the columns of a table. Pure, but for reading the file.

A step is one target pass with the draft passes before it. Its time includes prefills of other requests.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.acceptance.rounds import iid_tokens_per_call
from pipeline.errors import UsageError
from pipeline.latency.costs.columns import (
    SHARES,
    TIMES,
    UNCLEAR,
    check_names,
    columns_read,
    is_median,
    listed,
    missing_concurrency,
    parse_row,
    told,
    unread,
)
from pipeline.latency.costs.tables import is_table, read_rows

MOST_GAMMA, MOST_REQUESTS = 128, 100_000
_MAX_PLAIN_TOKENS = 1.05  # tokens per step that still count as plain decoding (rounding)
_MAX_TPOT = 3.0  # seconds per token above which the unit is assumed to be wrong
_MIN_SERVED = 0.95  # completed / offered load below which the server was overloaded
_AGREES = 1.5  # ratio up to which two columns tell of the same time, one as a median and one as a mean
_LENGTH_AGREES = 0.05  # relative difference of two acceptance columns
_FULL = 0.7  # decoding requests / concurrency below which the others waited


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
    isolated: bool = False  # the step was measured alone, so it contains no prefills of other requests


@dataclass(frozen=True)
class Table:
    """A file's measurements, and how it was read: sentences for its user."""

    measured: list[Measurement]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """One row: quantities, the columns from which they were read, and what there was."""

    where: str
    values: Mapping[str, float]
    columns: Mapping[str, str]
    given: Mapping[str, Any]


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
        rows.append(
            _Row(where, parsed | values, {name: one for name, one in read.items() if name not in values}, given)
        )
    in_tokens = _throughput_in_tokens(rows)
    found = [_measurement(row, in_tokens) for row in rows]
    said = Counter(note for _, notes in found for note in notes)
    return Table(
        [one for one, _ in found],
        [
            *_said_of_columns(rows),
            *(note if times == len(rows) else f"{note} ({times} of {len(rows)} rows)" for note, times in said.items()),
        ],
    )


def _said_of_columns(rows: Sequence[_Row]) -> list[str]:
    """What was read as what, once for each set of columns."""
    found = list(dict.fromkeys(f"read {told(row.columns)}" for row in rows if row.columns))
    ignored = dict.fromkeys(name for row in rows for name in unread(row.given, row.columns))
    return found + [f"'{name}' was not read: it can be how many were sent in all" for name in ignored]


def _throughput_in_tokens(rows: Sequence[_Row]) -> bool:
    """Whether the throughput is in tokens per second: the column says so, or by Little's law all requests decode at some load.
    A column `throughput` may as well be in requests per second."""
    return any(
        row.columns.get("throughput") not in UNCLEAR
        or (
            "tpot" in row.values
            and _decoding(row.values, row.values["tpot"]) >= _FULL * row.values.get("concurrency", math.inf)
        )
        for row in rows
    )


def _measurement(row: _Row, in_tokens: bool) -> tuple[Measurement, list[str]]:
    """The measurement of a row, and what its user must know about how it was read."""
    _check(row)
    gamma = int(row.values.get("gamma", 0.0))
    length, notes = _tokens_per_step(row, gamma)
    step, of_step = _step_seconds(row, length)
    requests, of_batch = _batch(row, step / length, in_tokens)
    _check_requests(row.where, requests)
    return Measurement(
        where=row.where,
        requests=requests,
        gamma=gamma,
        tokens_per_step=length,
        step_seconds=step,
        output_tokens=row.values.get("tokens"),
        ttft=row.values.get("ttft"),
    ), notes + of_step + of_batch


def _check(row: _Row) -> None:
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


def _tokens_per_step(row: _Row, gamma: int) -> tuple[float, list[str]]:
    values, where, notes = row.values, row.where, list[str]()
    length = values.get("acceptance_length")
    if gamma == 0:
        if length is not None and length > _MAX_PLAIN_TOKENS:
            said = (
                "the draft length is 0"
                if "gamma" in values
                else "the draft length is unknown; name its column with --column gamma=NAME"
            )
            raise UsageError(f"{where}: {length:g} tokens per step, but {said}")
        return 1.0, notes
    rate, column = values.get("draft_acceptance_rate"), row.columns.get("draft_acceptance_rate")
    if length is not None:
        if rate is not None and _apart(length, 1 + gamma * rate) > _LENGTH_AGREES:
            if _apart(length + 1, 1 + gamma * rate) <= _LENGTH_AGREES:
                length += 1
                notes.append(
                    "the acceptance length counts accepted draft tokens only, so 1 was added for the target's own"
                )
            elif _apart(length, iid_tokens_per_call(rate, gamma)) <= _LENGTH_AGREES:
                notes.append(f"{column} is an acceptance rate per token, by the acceptance length")
            else:
                notes.append(f"{column} and the acceptance length disagree; the length was taken")
    elif "acceptance_rate" in values:
        length = iid_tokens_per_call(values["acceptance_rate"], gamma)
    elif rate is not None:
        length = 1 + gamma * rate
        if column == "acceptance_rate":
            notes.append(
                "acceptance_rate was read as accepted / drafted tokens, as engines count it; if it is per token, give "
                "--column acceptance_rate=acceptance_rate"
            )
    else:
        raise UsageError(
            f"{where}: draft length {gamma}, but the acceptance is unknown; name its column with "
            "--column acceptance_length=NAME (or draft_acceptance_rate, acceptance_rate)"
        )
    if not 1 <= length <= gamma + 1:
        raise UsageError(f"{where}: {length:g} tokens per step at draft length {gamma}; possible are 1 to {gamma + 1}")
    return length, notes


def _step_seconds(row: _Row, length: float) -> tuple[float, list[str]]:
    """Seconds of a step with `length` tokens for each request. The mean time between two chunks of a stream is a step where an
    engine sends each step's tokens together, as vLLM does; some tables have the time per token under the same name."""
    values = row.values
    if "step" in values:
        return values["step"], []
    step, itl = _token_seconds(row) * length, values.get("itl")
    if itl is not None and _ratio(itl, step) <= min(_AGREES, _ratio(itl, step / length)):
        return itl, []
    notes = []
    if itl is not None and _ratio(itl, step / length) > _AGREES:
        notes.append(f"{row.columns.get('itl', 'itl')} is neither a step nor the time per token, so it was not used")
    if is_median(row.columns.get("tpot", "")) and values.get("running", 0) > 0 and values.get("throughput", 0) > 0:
        mean = values["running"] / values["throughput"] * length
        if _ratio(mean, step) <= _AGREES:
            return mean, [
                *notes,
                "the step was taken from running and throughput, because the time per token is a median",
            ]
    if is_median(row.columns.get("tpot", "")) and length > 1:
        notes.append(
            "the time per token is a median, so the steps with drafts may be off; a mean is better (mean_tpot_ms)"
        )
    return step, notes


def _token_seconds(row: _Row) -> float:
    """TPOT in seconds."""
    values = row.values
    if "tpot" in values:
        found = values["tpot"]
    elif "latency" in values and values.get("tokens", 0) > 1:
        found = (values["latency"] - values.get("ttft", 0.0)) / (values["tokens"] - 1)
    elif values.get("throughput", 0) > 0 and (requests := values.get("running", values.get("concurrency"))):
        # In a closed loop `concurrency` includes requests that wait for their first token, `running` does not.
        several = "running" not in values and values.get("tokens", 0) > 1
        found = requests / values["throughput"] - (values.get("ttft", 0.0) / values["tokens"] if several else 0.0)
    else:
        raise UsageError(
            f"{row.where}: TPOT is unknown; columns are {listed(row.given)}; name its column with --column tpot=NAME (or latency "
            "with tokens, or throughput)"
        )
    if not found > 0:
        raise UsageError(f"{row.where}: TPOT is {found:g} s, but must be above 0")
    return found


def _batch(row: _Row, token_seconds: float, in_tokens: bool) -> tuple[float, list[str]]:
    """Requests in the batch. By Little's law throughput times TPOT requests decode at a time; where that is far below the
    concurrency, the others waited. For an open loop it is rate times latency, plus the request itself (a Poisson arrival sees
    the mean)."""
    values = row.values
    if "running" in values:
        return values["running"], []
    decoding = _decoding(values, token_seconds)
    rate = values.get("served_rate", values.get("rate"))
    if "concurrency" in values:
        if in_tokens and 0 < decoding < _FULL * values["concurrency"]:
            return decoding, [
                "the server was full: by throughput and time per token far fewer requests ran than the concurrency says, the "
                "others waited; the batch that ran was taken"
            ]
        return values["concurrency"], []
    if rate is not None and "latency" in values:
        return 1 + rate * values["latency"], []
    if decoding > 0:
        return decoding, ["the number of requests in the batch is throughput times time per token"]
    raise missing_concurrency(row.given, row.where)


def _decoding(values: Mapping[str, float], token_seconds: float) -> float:
    """Requests that decode at a time, by Little's law; 0 if the throughput is unknown."""
    return values.get("throughput", 0.0) * token_seconds


def _apart(one: float, other: float) -> float:
    """Relative difference."""
    return abs(one / other - 1) if other else math.inf


def _ratio(one: float, other: float) -> float:
    """The larger / the smaller."""
    return max(one / other, other / one)

"""Which columns of a table whose names are not known can be what is missing, by their values. Pure.

Nothing is read by this: a line with `--column` is offered, for its user to judge, where one assignment only fits. By Little's law
throughput times time per token is the number of requests that decode; with one of the three unknown, the time per token must be
possible, and must not fall as the load grows.
"""

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.columns import plain_name
from pipeline.latency.costs.row import MAX_TPOT, MIN_TPOT, Row

_FITS = 1.3  # ratio of both sides of Little's law: prefills take a part of the requests
_MOST_ROWS = 0.8  # share of the rows that must fit
_FALLS = 1.15  # ratio by which a time per token may fall from one load to the next: noise
_RISES = 1.2  # throughput at the heaviest / at the lightest load from which it is that of all requests
_TIMES = {"step", "itl", "tpot", "latency", "each_throughput", "throughput"}
_REQUESTS = {"running", "concurrency", "rate", "served_rate", "limit"}
_SCALES = {"ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "s": 1.0, "sec": 1.0, "seconds": 1.0}
_PER_SECOND = re.compile(r"tps|toks?_?(per|p)?_?s|tokens?.*_(s|sec|second)(_|$)|throughput")
_FIRST = re.compile(r"ttft|ftl|first|prefill|queue|wait|acc|hit|std|min|max|p\d\d")  # no mean of what is missing

Assignment = dict[str, str]  # column by quantity
Column = list[float]


def check_missing(rows: Sequence[Row], where: object) -> None:
    """UsageError with the line to give, if the table has no time, or no number of requests, and one assignment fits."""
    no_time = not any(row.values.keys() & _TIMES for row in rows)
    no_requests = not any(row.values.keys() & _REQUESTS for row in rows)
    if not (no_time or no_requests):
        return
    found = list(_assignments(rows, no_time, no_requests))
    if len(found) == 1:
        ((assignment, why),) = found
        line = " ".join(f"--column {shlex.quote(f'{name}={column}')}" for name, column in assignment.items())
        lacks = " and ".join(
            [*(["the time per token is"] if no_time else []), *(["the number of requests is"] if no_requests else [])]
        )
        raise UsageError(f"{where}: {lacks} in no column with a known name; {why}. If so, give {printable(line)}")


def _assignments(rows: Sequence[Row], no_time: bool, no_requests: bool) -> Iterator[tuple[Assignment, str]]:
    """Those that fit, with a sentence."""
    numbers = _numbers(rows)
    loads = _known(rows, ("running", "concurrency"))
    throughput, tpot = _known(rows, ("throughput",)), _known(rows, ("tpot",))
    if no_requests:
        rates = {"": throughput} if throughput else {name: one for name, one in numbers.items() if _is_rate(name)}
        times = {"": tpot} if tpot else {name: one for name, one in numbers.items() if not _is_rate(name)}
        for count, rate, time in product(numbers, rates, times):
            scaled = times[time] if not time else [value * _scale(time) for value in times[time]]
            if (
                len({count, rate, time}) == 3
                and _is_count(numbers[count])
                and _fit(numbers[count], rates[rate], scaled)
            ):
                named = {"concurrency": count, "throughput": rate, "tpot": time}
                given = {name: column for name, column in named.items() if column}
                yield given, "by Little's law (throughput x time per token) these columns fit each other"
        return
    if not (no_time and loads):
        return
    as_throughput = [name for name in numbers if _is_rate(name) and _is_of_all(rows, loads, numbers[name])]
    for name in as_throughput:
        yield {"throughput": name}, f"by its values '{printable(name)}' can be the tokens per second of all requests"
    if not as_throughput:
        for name in numbers:
            if _has_time_unit(name) and _grows(rows, loads, [value * _scale(name) for value in numbers[name]]):
                yield {"tpot": name}, f"by its values '{printable(name)}' can be the time per output token"


def _numbers(rows: Sequence[Row]) -> dict[str, Column]:
    """Columns that were not read and have a positive number in each row."""
    found: dict[str, Column] = {}
    for name in rows[0].given:
        if name in rows[0].columns.values() or _FIRST.search(plain_name(name)):
            continue
        values = [_number(row.given.get(name)) for row in rows]
        if all(value > 0 for value in values):
            found[name] = values
    return found


def _number(cell: object) -> float:
    try:
        value = float(str(cell))
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _known(rows: Sequence[Row], names: Sequence[str]) -> Column | None:
    """The first of the quantities that all rows have."""
    for name in names:
        if all(name in row.values for row in rows):
            return [row.values[name] for row in rows]
    return None


def _is_rate(name: str) -> bool:
    return bool(_PER_SECOND.search(plain_name(name)))


def _has_time_unit(name: str) -> bool:
    return not _is_rate(name) and bool(set(plain_name(name).split("_")) & _SCALES.keys())


def _scale(name: str) -> float:
    return next((_SCALES[word] for word in plain_name(name).split("_") if word in _SCALES), 1.0)


def _is_count(values: Column) -> bool:
    return all(value >= 1 and value == int(value) for value in values) and len(set(values)) > 1


def _fit(loads: Column, rates: Column, times: Column) -> bool:
    ratios = [rate * time / load for load, rate, time in zip(loads, rates, times, strict=True)]
    return sum(1 / _FITS <= one <= _FITS for one in ratios) >= _MOST_ROWS * len(ratios)


def _is_of_all(rows: Sequence[Row], loads: Column, rates: Column) -> bool:
    """Whether it rises with the load, and the time per token that follows from it is possible."""
    ends = [
        (of_gamma[0], of_gamma[-1]) for of_gamma in _by_gamma(rows, loads, rates) if of_gamma[-1][0] > of_gamma[0][0]
    ]
    rises = bool(ends) and all(high[1] >= _RISES * low[1] for low, high in ends)
    return rises and _grows(rows, loads, [load / rate for load, rate in zip(loads, rates, strict=True)])


def _grows(rows: Sequence[Row], loads: Column, seconds: Column) -> bool:
    """Whether it is a possible time per token that does not fall with the load."""
    groups = _by_gamma(rows, loads, seconds)
    steady = all(later[1] * _FALLS >= earlier[1] for group in groups for earlier, later in pairwise(group))
    return steady and all(MIN_TPOT <= one <= MAX_TPOT for one in seconds)


def _by_gamma(rows: Sequence[Row], loads: Column, values: Column) -> list[list[tuple[float, float]]]:
    """Load and value in order of load, by draft length."""
    found: Mapping[float, list[tuple[float, float]]] = {row.values.get("gamma", 0.0): [] for row in rows}
    for row, load, value in zip(rows, loads, values, strict=True):
        found[row.values.get("gamma", 0.0)].append((load, value))
    return [sorted(group) for group in found.values()]

"""Columns of a table of measurements: which name is read as which quantity, and in which unit. Pure.

Names are compared without regard to case and to what is not a letter or a digit: `TPOT (ms)` is `tpot_ms`. Those of times may
have a unit and state that they are a mean or a median, in any place: `Avg TPOT [ms]`, `ttft_p50`.
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

# Quantities and the column names under which they are found; the first match is used. Of each the one of the documented header,
# and the keys of vLLM's and SGLang's own results and settings. What else a table calls them is `by_value.py`, which only offers.
# Times are without unit and statistic.
COLUMNS: dict[str, tuple[str, ...]] = {
    "running": ("running",),
    "concurrency": ("concurrency", "max_concurrency"),
    "rate": ("rate", "request_rate", "qps"),
    "served_rate": ("served_rate", "request_throughput"),
    "gamma": ("k", "gamma", "num_speculative_tokens", "speculative_num_steps"),
    "acceptance_length": (
        "acceptance_length",
        "mean_acceptance_length",
        "spec_decode_acceptance_length",
        "accept_length",
    ),
    "acceptance_rate": ("alpha",),  # per token
    "draft_acceptance_rate": ("draft_acceptance_rate", "acceptance_rate"),  # accepted / drafted
    "step": ("step", "step_time"),
    "itl": ("itl",),
    "tpot": ("tpot",),
    "ttft": ("ttft",),
    "latency": ("latency", "e2el", "e2e_latency"),
    "throughput": ("output_tok_s", "output_throughput"),
    "each_throughput": ("each_throughput",),
    "tokens": ("tokens", "output_tokens"),
    "completed": ("completed",),
}
TIMES = ("step", "itl", "tpot", "ttft", "latency")
ABOVE_ZERO = ("rate", "served_rate", "throughput", "each_throughput", "tokens")
_MEAN, _MEDIAN = {"mean", "avg", "average"}, {"median", "p50"}
_MILLI = {"ms", "msec", "millis", "millisecond", "milliseconds"}
_MICRO = {"us", "usec", "micros", "microsecond", "microseconds"}
_SECONDS = {"s", "sec", "secs", "second", "seconds"}
_OTHER_UNITS = {  # seconds of those that are not read: `min` may also be the minimum
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
_NO_BASE = _MEAN | _MEDIAN | _MILLI | _MICRO | _SECONDS  # words that do not show which quantity it is
SHARES = ("acceptance_rate", "draft_acceptance_rate")
_UNITS = {
    "rate": "requests/s",
    "served_rate": "requests/s",
    "throughput": "tokens/s",
    "each_throughput": "tokens/s of each request",
    "acceptance_rate": "per token",
    "draft_acceptance_rate": "accepted / drafted",
    "acceptance_length": "tokens per step",
}
_FACTOR = re.compile(r"(.+)\*\s*([0-9.eE+-]+)")  # of a column that is given: NAME*0.001
_SHOWN = 12  # columns in a message


def check_names(names: Iterable[str], where: object) -> None:
    """UsageError for a name that is no quantity."""
    if unknown := next((name for name in names if name not in COLUMNS), None):
        raise UsageError(f"{where}: '{unknown}' is not a known quantity; known are {', '.join(COLUMNS)}")


def without_factors(given: Mapping[str, str], names: Sequence[str]) -> tuple[dict[str, str], dict[str, float]]:
    """`tpot=NAME*0.001` as the column NAME, and its factor by quantity: for units that a name does not state."""
    columns, factors = dict(given), dict[str, float]()
    for name, column in given.items():
        if column not in names and (match := _FACTOR.fullmatch(column)):
            try:
                columns[name], factors[name] = match[1].strip(), float(match[2])
            except ValueError:
                continue
    return columns, factors


def columns_read(row: Mapping[str, Any], names: Iterable[str], given: Mapping[str, str], where: str) -> dict[str, str]:
    """The column of each quantity that the row has a value of; `names` are all columns of the table. `given` maps a quantity to a
    column and goes before the names of `COLUMNS`; a column is read once. UsageError for a column that is not there."""
    names = list(names)
    named = {plain_name(column): column for column in reversed(names)}
    taken = {
        name: column if column in names else named.get(plain_name(column), column) for name, column in given.items()
    }
    if absent := next((column for column in taken.values() if column not in names), None):
        raise UsageError(f"{where}: no column '{printable(absent)}'; columns are {listed(names)}")
    read = {}
    for name, aliases in COLUMNS.items():
        known = _times(names, aliases) if name in TIMES else (named[alias] for alias in aliases if alias in named)
        free = (column for column in known if column in row and column not in taken.values())
        column = taken.get(name) or next(free, None)
        if column is not None and column in row:
            if names.count(column) > 1:
                raise UsageError(f"{where}: two columns are named '{printable(column)}'; remove or rename one")
            read[name] = column
    return read


def parse_row(
    row: Mapping[str, Any], columns: Mapping[str, str], factors: Mapping[str, float], where: str
) -> dict[str, float]:
    """Numbers by quantity, times their factors; times in seconds, shares from 0 to 1. UsageError for what is not a number, and
    for a unit that needs a factor. A request rate may be unlimited; `completed` may be a flag."""
    parsed = {}
    for name, column in columns.items():
        if name in TIMES and name not in factors:
            _check_unit(name, column, where)
        try:
            value = _parsed(name, row[column])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if name == "completed" and math.isnan(value):
            continue
        if not math.isfinite(value) and (name, value) != ("rate", math.inf):
            raise UsageError(f"{where}: {column} is {str(row[column])!r}, which is not a number; correct it")
        scale = 1.0 if str(row[column]).strip().endswith("%") else _scale(name, column)
        parsed[name] = value * scale * factors.get(name, 1.0)
    return parsed


def told(columns: Mapping[str, str], factors: Mapping[str, float]) -> str:
    """Which column was read as what, for people."""
    return ", ".join(
        f"{column}{f' * {factors[name]:g}' if name in factors else ''} as {name}{_unit(name, column)}"
        for name, column in columns.items()
    )


def unread(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    """Columns that were not read."""
    return [name for name in row if name not in columns.values()]


def is_median(column: str) -> bool:
    """Whether the column's name states that it is a median."""
    return bool(_words(column) & _MEDIAN)


def is_mean(column: str) -> bool:
    """Whether the column's name states that it is a mean."""
    return bool(_words(column) & _MEAN)


def unit(column: str) -> float | None:
    """Seconds of the unit that the name of a time states; None if it states none."""
    words = _words(column)
    return 1e-3 if words & _MILLI else 1e-6 if words & _MICRO else 1.0 if words & _SECONDS else None


def listed(row: Iterable[str]) -> str:
    """The first column names, for a message."""
    names = list(row)
    return printable(", ".join(names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


def _times(names: Sequence[str], bases: Sequence[str]) -> list[str]:
    """Columns of a time. Means go before medians, because a median time per token times mean tokens per step is not the time of a
    step; other quantiles are no match."""
    ranked = []
    for place, column in enumerate(names):
        words = _words(column)
        base = "_".join(word for word in plain_name(column).split("_") if word not in _NO_BASE)
        if base in bases:
            rank = 0 if words & _MEAN else 2 if words & _MEDIAN else 1
            ranked.append((rank, bases.index(base), place, column))
    return [column for *_, column in sorted(ranked)]


def _words(column: str) -> set[str]:
    return set(plain_name(column).split("_"))


def _scale(name: str, column: str) -> float:
    if name in TIMES:
        return unit(column) or 1.0
    return 0.01 if name in SHARES and re.search(r"%|percent|(?<![a-z])pct(?![a-z])", column.lower()) else 1.0


def _check_unit(name: str, column: str, where: str) -> None:
    """UsageError where the name of a time says what may be a unit, and none that is read."""
    other = next((_OTHER_UNITS[word] for word in plain_name(column).split("_") if word in _OTHER_UNITS), None)
    if other is not None and unit(column) is None:
        factor = shlex.quote(printable(f"{name}={column}*{other:g}"))
        raise UsageError(
            f"{where}: '{printable(column)}' may be a time in another unit than seconds; if so, give --column {factor}, else *1"
        )


def _parsed(name: str, cell: Any) -> float:
    """A share may be written as 70%. Python reads 1_0 as 10."""
    if isinstance(cell, str) and "_" in cell:
        raise ValueError(cell)
    if name in SHARES and isinstance(cell, str) and cell.strip().endswith("%"):
        return float(cell.strip().removesuffix("%")) / 100
    return float(cell)


def _unit(name: str, column: str) -> str:
    unit = {1e-3: "ms", 1e-6: "us"}.get(_scale(name, column), "s") if name in TIMES else _UNITS.get(name)
    return f" ({unit})" if unit else ""


def plain_name(column: str) -> str:
    """`TPOT (ms)` as `tpot_ms`, and `TTFT (\u00b5s)` as `ttft_us`: both signs for micro are a u."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub("[\u00b5\u03bc]", "u", column.lower())).strip("_")

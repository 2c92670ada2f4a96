"""Columns of a table of measurements: which name is read as which quantity, and in which unit. Pure.

Names are compared without regard to case and to what is not a letter or a digit: `TPOT (ms)` is `tpot_ms`. Those of times may
have a unit and say that they are a mean or a median, in any place: `Avg TPOT [ms]`, `ttft_p50`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

# Quantities and the column names under which they are found; the first match is used. Times are without unit and statistic.
COLUMNS: dict[str, tuple[str, ...]] = {
    "running": ("running", "mean_running", "num_requests_running", "mean_batch_size", "batch_size", "batch"),
    "concurrency": (
        "concurrency",
        "max_concurrency",
        "request_concurrency",
        "concurrent_requests",
        "num_concurrent_requests",
    ),
    "rate": ("rate", "request_rate", "qps"),
    "served_rate": (
        "served_rate",
        "request_throughput",
        "requests_per_second",
        "request_throughput_per_sec",
        "request_throughput_req_s",
        "request_throughput_req_sec",
        "request_throughput_requests_sec",
    ),
    "gamma": (
        "gamma",
        "k",
        "num_speculative_tokens",
        "speculative_tokens",
        "num_spec_tokens",
        "spec_tokens",
        "draft_length",
        "draft_len",
        "speculative_num_steps",
    ),
    "acceptance_length": (
        "acceptance_length",
        "mean_acceptance_length",
        "spec_decode_acceptance_length",
        "accept_length",
        "accept_len",
        "acceptance_len",
        "spec_accept_length",
        "tokens_per_target_call",
        "tokens_per_step",
        "omega",
    ),
    "acceptance_rate": ("alpha",),  # per token
    "draft_acceptance_rate": ("draft_acceptance_rate", "acceptance_rate"),  # accepted / drafted
    "step": ("step", "step_time"),
    "itl": ("itl",),
    "tpot": ("tpot", "time_per_output_token", "inter_token_latency"),
    "ttft": ("ttft", "time_to_first_token"),
    "latency": ("latency", "e2el", "e2e_latency", "request_latency", "end_to_end_latency"),
    "throughput": (
        "output_tok_s",
        "output_throughput",
        "output_token_throughput",
        "output_token_throughput_tok_s",
        "output_throughput_tok_s",
        "output_throughput_tokens_s",
        "output_token_throughput_per_sec",
        "output_token_throughput_tokens_s",
        "output_token_throughput_tokens_sec",
        "total_output_throughput_tokens_sec",
        "total_token_output_throughput_tokens_sec",
        "output_tokens_per_second",
        "throughput_tok_s",
        "tokens_per_second",
        "throughput",
    ),
    "each_throughput": (
        "each_throughput",
        "tokens_per_second_per_user",
        "output_tokens_per_second_per_user",
        "output_token_throughput_per_user",
        "output_token_throughput_per_user_per_sec",
        "output_token_throughput_per_user_tokens_sec_user",
        "per_user_output_throughput_tps_user",
        "per_user_output_speed_tps_user",
        "tok_s_user",
        "tokens_s_user",
        "tps_user",
    ),
    "tokens": (
        "tokens",
        "output_tokens",
        "mean_output_tokens",
        "output_len",
        "output_sequence_length",
        "output_sequence_length_tokens",
        "osl",
    ),
    "completed": ("completed",),
}
TIMES = ("step", "itl", "tpot", "ttft", "latency")
ABOVE_ZERO = ("rate", "served_rate", "throughput", "each_throughput", "tokens")
_MEAN, _MEDIAN = {"mean", "avg", "average"}, {"median", "p50"}
_MILLI = {"ms", "msec", "millis", "millisecond", "milliseconds"}
_MICRO = {"us", "usec", "micros", "microsecond", "microseconds"}
_SECONDS = {"s", "sec", "secs", "second", "seconds"}
_NO_BASE = _MEAN | _MEDIAN | _MILLI | _MICRO | _SECONDS  # words that do not tell which quantity it is
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
UNCLEAR = ("throughput",)  # columns whose unit a table may give otherwise: requests/s
_AMBIGUOUS = ("requests",)  # how many were sent in all, or how many ran at once
_SHOWN = 12  # columns in a message


def check_names(names: Iterable[str], where: object) -> None:
    """UsageError for a name that is no quantity."""
    if unknown := next((name for name in names if name not in COLUMNS), None):
        raise UsageError(f"{where}: '{unknown}' is not a known quantity; known are {', '.join(COLUMNS)}")


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
    found = {}
    for name, aliases in COLUMNS.items():
        known = _times(names, aliases) if name in TIMES else (named[one] for one in aliases if one in named)
        free = (one for one in known if one in row and one not in taken.values())
        column = taken.get(name) or next(free, None)
        if column is not None and column in row:
            if names.count(column) > 1:
                raise UsageError(f"{where}: two columns are named '{printable(column)}'; remove or rename one")
            found[name] = column
    return found


def parse_row(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, float]:
    """Numbers by quantity; times in seconds, shares from 0 to 1. UsageError for what is not a number. A request rate may be
    unlimited; `completed` may be a flag."""
    found = {}
    for name, column in columns.items():
        try:
            value = _parsed(name, row[column])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if name == "completed" and math.isnan(value):
            continue
        if not math.isfinite(value) and (name, value) != ("rate", math.inf):
            raise UsageError(f"{where}: {column} is {str(row[column])!r}, which is not a number; correct it")
        found[name] = value * (1.0 if str(row[column]).strip().endswith("%") else _scale(name, column))
    return found


def told(columns: Mapping[str, str]) -> str:
    """Which column was read as what, for people."""
    return ", ".join(f"{column} as {name}{_unit(name, column)}" for name, column in columns.items())


def unread(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    """Columns that were not read."""
    return [name for name in row if name not in columns.values()]


def ambiguous(names: Iterable[str]) -> list[str]:
    """Those of the columns whose name means two things."""
    return [name for name in names if plain_name(name) in _AMBIGUOUS]


def missing_concurrency(row: Mapping[str, Any], where: str) -> UsageError:
    """What to say where the number of concurrent requests cannot be known."""
    for name in ambiguous(row):
        return UsageError(
            f"{where}: the number of concurrent requests is unknown: '{name}' can be how many were sent in all or how many ran "
            f"at once. If they ran at once, give --column concurrency={name}; else name the column of the concurrency"
        )
    return UsageError(
        f"{where}: the number of concurrent requests is unknown; columns are {listed(row)}; name its column with "
        "--column concurrency=NAME (or rate=NAME and latency=NAME)"
    )


def is_median(column: str) -> bool:
    """Whether the column's name says that it is a median."""
    return bool(_words(column) & _MEDIAN)


def has_unit(column: str) -> bool:
    """Whether the name of a time says in which unit it is."""
    return bool(_words(column) & (_MILLI | _MICRO | _SECONDS))


def listed(row: Iterable[str]) -> str:
    """The first column names, for a message."""
    names = list(row)
    return printable(", ".join(names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


def _times(names: Sequence[str], bases: Sequence[str]) -> list[str]:
    """Columns of a time. Means go before medians, because a median time per token times mean tokens per step is not the time of a
    step; other quantiles are no match."""
    found = []
    for place, column in enumerate(names):
        words = _words(column)
        base = "_".join(one for one in plain_name(column).split("_") if one not in _NO_BASE)
        if base in bases:
            rank = 0 if words & _MEAN else 2 if words & _MEDIAN else 1
            found.append((rank, bases.index(base), place, column))
    return [column for *_, column in sorted(found)]


def _words(column: str) -> set[str]:
    return set(plain_name(column).split("_"))


def _scale(name: str, column: str) -> float:
    if name in TIMES and (words := _words(column)) & (_MILLI | _MICRO):
        return 1e-3 if words & _MILLI else 1e-6
    return 0.01 if name in SHARES and re.search(r"%|percent|(?<![a-z])pct(?![a-z])", column.lower()) else 1.0


def _parsed(name: str, cell: Any) -> float:
    """A share may be written as 70%."""
    if name in SHARES and isinstance(cell, str) and cell.strip().endswith("%"):
        return float(cell.strip().removesuffix("%")) / 100
    return float(cell)


def _unit(name: str, column: str) -> str:
    unit = {1e-3: "ms", 1e-6: "us"}.get(_scale(name, column), "s") if name in TIMES else _UNITS.get(name)
    return f" ({unit})" if unit else ""


def plain_name(column: str) -> str:
    """`TPOT (ms)` as `tpot_ms`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")

"""Columns of a table of measurements: which name is read as which quantity, and in which unit. Pure.

Names are compared without regard to case and to what is not a letter or a digit: `TPOT (ms)` is `tpot_ms`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

# Quantities and the column names under which they are found; the first match is used. Means stand before medians, because a
# median time per token times mean tokens per step is not the time of a step.
COLUMNS: dict[str, tuple[str, ...]] = {
    "running": ("running", "mean_running", "num_requests_running", "mean_batch_size", "batch_size", "batch"),
    "concurrency": ("concurrency", "max_concurrency", "request_concurrency", "concurrent_requests"),
    "rate": ("rate", "request_rate", "qps"),
    "served_rate": ("served_rate", "request_throughput", "requests_per_second"),
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
    "step": ("step", "step_s", "step_ms", "step_time_ms"),
    "itl": ("mean_itl_ms", "itl_mean_ms", "itl_ms", "itl"),
    "tpot": ("mean_tpot_ms", "tpot_mean_ms", "tpot", "tpot_s", "tpot_ms", "median_tpot_ms", "tpot_p50_ms"),
    "ttft": ("ttft", "ttft_s", "ttft_ms", "mean_ttft_ms", "ttft_mean_ms", "median_ttft_ms", "ttft_p50_ms"),
    "latency": (
        "latency",
        "latency_s",
        "latency_ms",
        "mean_e2el_ms",
        "e2el_ms",
        "mean_e2e_latency_ms",
        "request_latency",
    ),
    "throughput": (
        "output_tok_s",
        "output_throughput",
        "output_token_throughput",
        "output_token_throughput_tok_s",
        "output_throughput_tok_s",
        "output_tokens_per_second",
        "throughput_tok_s",
        "tokens_per_second",
        "throughput",
    ),
    "tokens": ("tokens", "output_tokens", "output_len"),
    "completed": ("completed",),
}
TIMES = ("step", "itl", "tpot", "ttft", "latency")
SHARES = ("acceptance_rate", "draft_acceptance_rate")
_UNITS = {
    "rate": "requests/s",
    "served_rate": "requests/s",
    "throughput": "tokens/s",
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
        free = (named[one] for one in aliases if named.get(one) in row and named[one] not in taken.values())
        column = taken.get(name) or next(free, None)
        if column is not None and column in row:
            if names.count(column) > 1:
                raise UsageError(f"{where}: two columns are named '{printable(column)}'; remove or rename one")
            found[name] = column
    return found


def parse_row(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, float]:
    """Numbers by quantity; times in seconds, shares from 0 to 1. UsageError for what is not a number. An unlimited request rate
    is none; `completed` may be a flag."""
    found = {}
    for name, column in columns.items():
        try:
            value = _parsed(name, row[column])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if (name == "completed" and math.isnan(value)) or (name == "rate" and value == math.inf):
            continue
        if not math.isfinite(value):
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
    return re.search(r"median|p50", column.lower()) is not None


def listed(row: Iterable[str]) -> str:
    """The first column names, for a message."""
    names = list(row)
    return printable(", ".join(names[:_SHOWN])) + (", ..." if len(names) > _SHOWN else "")


def _scale(name: str, column: str) -> float:
    if name in TIMES and re.search(r"(?<![a-z])(ms|msec|millis|milliseconds?)(?![a-z])", column.lower()):
        return 1e-3
    if name in TIMES and re.search(r"(?<![a-z])(us|usec|micros|microseconds?)(?![a-z])", column.lower()):
        return 1e-6
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

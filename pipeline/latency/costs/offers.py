"""What is said of the columns of a table that were not read: the line with `--column` that reads them. Pure.

What they can be is `by_value.py`.
"""

import shlex
from collections.abc import Sequence

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.latency.costs.by_value import ACCEPTANCE, Unread
from pipeline.latency.costs.name_words import tells_of_drafts
from pipeline.latency.costs.row import NO_DRAFT_LENGTH, MeasuredRow

_NOT_KNOWN = "in no column with a known name"


def offered(rows: Sequence[MeasuredRow], where: object) -> list[str]:
    """Sentences on columns that were not read and would tell more. UsageError with the line to give if what is missing is the
    time, the number of requests, the draft length, or how many requests were served at a rate."""
    table = Unread(rows)
    assigned, open_ones = table.assignment()
    line = printable(" ".join(_column(name, column) for name, column in assigned.items()))
    if lacks := dict.fromkeys(what for name, what in table.lacks.items() if name in assigned or name in open_ones):
        for name, columns in open_ones.items():
            if name in table.lacks and not any(table.lacks.get(quantity) == table.lacks[name] for quantity in assigned):
                raise UsageError(f"{where}: {_several(name, columns, table.lacks[name], line)}")
        raise UsageError(
            f"{where}: {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} {_NOT_KNOWN}; by name and value these columns "
            f"can be what is missing. If so, give {line}"
            + (
                "; if there are no drafts, append it to the file: FILE:gamma=0"
                if "gamma" in assigned and not any("acceptance" in name for name in assigned)
                else ""
            )
        )
    if "gamma" in table.lacks and (drafted := table.accepted()):
        raise UsageError(f"{where}: '{printable(drafted)}' is about drafts, but {NO_DRAFT_LENGTH}")
    unclear = [
        f"{name} can be {_or(columns)}; choose with --column {name}=NAME"
        for name, columns in open_ones.items()
        if name in ACCEPTANCE
    ]
    if assigned:
        unclear.append(f"by name and value other columns can be read too; if they are what they seem, give {line}")
    return unclear


def _several(name: str, columns: Sequence[str], lacks: str, line: str) -> str:
    """What to print about columns of which values do not show whether they are this quantity."""
    if len({tells_of_drafts(column) for column in columns}) > 1:
        return (
            f"{_or(columns)}: with and without a draft in one row; write a row for each load and draft length, with a column `k` "
            "(0 without a draft)"
        )
    several, and_line = _or(columns), f", and {line}" if line else ""
    if name == "concurrency":
        return (
            f"the number of concurrent requests is unknown: {several} can be how many were sent in all, or how many ran at once. "
            f"If they ran at once, give {printable(_column(name, columns[0]))}"
        )
    if name == "step":
        return (
            f"{lacks} is {_NOT_KNOWN}; {several} can be a time of a step or of a token: give --column step=NAME if it is of a "
            "step (itl=NAME if between chunks), --column tpot=NAME if it is of a token"
            f"{and_line}"
        )
    if all(column.endswith("*N") for column in columns):
        offers = " or ".join(printable(_column(name, column)) for column in columns)
        return f"{lacks} is {_NOT_KNOWN}, and can be {several}; give {offers}, with N the number of devices"
    if name == "throughput" and len(columns) == 1:
        of_all, each = (printable(_column(quantity, columns[0])) for quantity in (name, "each_throughput"))
        return (
            f"{lacks} is {_NOT_KNOWN}, and can be {several}; give {of_all} if it is of all requests, {each} if it is of each"
            f"{and_line}"
        )
    return f"{lacks} is {_NOT_KNOWN}, and can be {several}; choose with --column {name}=NAME"


def _or(columns: Sequence[str]) -> str:
    return " or ".join(f"'{printable(column)}'" for column in dict.fromkeys(columns))


def _column(name: str, column: str) -> str:
    return f"--column {shlex.quote(f'{name}={column}')}"

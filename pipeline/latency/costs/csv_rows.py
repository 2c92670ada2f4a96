"""Rows of a CSV table as spreadsheets and benchmarks write them: comments above it, empty rows, decimal commas. Pure.

It uses no quantity. A number is written back with a decimal point and without separators; other cells stay as they are.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

_DELIMITERS = ",;\t|"
_BLANK = ("", "-", "n/a", "na", "none", "null", "nan")  # cells without a value
_SHOWN = 80  # characters of a cell in a message
_SIGN, _PERCENT = r"[+-]?", r"\s*%?"
_COMMA = re.compile(rf"{_SIGN}(0,\d+|\d+,(\d{{1,2}}|\d{{4,}})|\d{{1,3}}(\.\d{{3}})+,\d+){_PERCENT}")
_POINT = re.compile(rf"{_SIGN}(0?\.\d+|\d+\.(\d{{1,2}}|\d{{4,}})|\d{{1,3}}(,\d{{3}})+\.\d+){_PERCENT}")
_GROUPS = re.compile(
    rf"{_SIGN}[1-9]\d{{0,2}}(,\d{{3}}|\.\d{{3}}){_PERCENT}"
)  # 1,234: a decimal or a thousands separator
_THOUSANDS = re.compile(rf"{_SIGN}[1-9]\d{{0,2}}(,\d{{3}})+(\.\d+)?{_PERCENT}")
_NUMBER = re.compile(r"\s*[+-]?[\d.,]+\s*")


class _Decimal(Enum):
    POINT, COMMA = ".", ","


@dataclass(frozen=True)
class CsvRow:
    """One row with a value."""

    line: int  # in the file, from 1
    cells: Mapping[str, str]  # by column; those with a value


@dataclass(frozen=True)
class CsvTable:
    """All columns of a table in their order, repeated names included, and its rows."""

    names: tuple[str, ...]
    rows: tuple[CsvRow, ...]


def read_csv(text: str, where: str) -> CsvTable:
    """The delimiter is the one that the header has most of. UsageError, naming `where` and the line, for rows that do not fit the
    header, a table without one, and numbers that can be read in two ways."""
    lines = _without_borders(text.splitlines())
    start = _header(lines)
    if start == len(lines):
        return CsvTable((), ())
    delimiter = max(_DELIMITERS, key=lines[start].count)
    try:
        read = list(_split(lines[start:], delimiter, start))
    except csv.Error as error:
        raise UsageError(f"{where}: not a CSV table: {error}; save it as CSV") from None
    (_, header), *rows = read
    names = tuple(name.strip() for name in header)
    if number := next((name for name in names if name and _NUMBER.fullmatch(name)), None):
        raise UsageError(f"{where}: line {start + 1}: '{number}' is no name; the first line must name the columns")
    for line, cells in rows:
        if len(cells) > len(names) and any(map(_filled, cells[len(names) :])):
            raise UsageError(
                f"{where}: line {line}: {len(cells)} values, but {len(names)} columns; quote a value that contains "
                f"{'a tab' if delimiter == chr(9) else repr(delimiter)}, such as a decimal comma"
            )
    rows = [(line, cells) for line, cells in rows if any(map(_filled, cells))]
    columns = [[(line, cells[place]) for line, cells in rows if place < len(cells)] for place in range(len(names))]
    styles = [_decimal(column, where, name) for name, column in zip(names, columns, strict=True)]
    if None in styles:
        _check_clear(styles, columns, delimiter, where)
    of_file = _Decimal.COMMA if _Decimal.COMMA in styles else _Decimal.POINT
    return CsvTable(
        names,
        tuple(
            CsvRow(
                line,
                {
                    name: _number(cell, style or of_file)
                    for name, cell, style in zip(names, cells, styles, strict=False)
                    if _filled(cell)
                },
            )
            for line, cells in rows
        ),
    )


def _without_borders(lines: list[str]) -> list[str]:
    """A Markdown table without its borders, its rule, bold type and the text around it; other tables as they are."""
    rows = [re.fullmatch(r"\s*\|(.*)\|\s*", line) for line in lines]
    if sum(map(bool, rows)) < 2:
        return lines
    return [row[1].replace("**", "") if row and re.search(r"[^|:\s-]", row[1]) else "" for row in rows]


def _header(lines: Sequence[str]) -> int:
    """Index of the header: the first line that is no comment, is not empty, and is no title above a table of several columns."""
    for place, line in enumerate(lines):
        cells = [cell for cell in re.split(f"[{_DELIMITERS}]", line) if cell.strip()]
        if cells and not line.lstrip().startswith("#") and (len(cells) > 1 or not re.search(f"[{_DELIMITERS}]", line)):
            return place
    return len(lines)


def _split(lines: Sequence[str], delimiter: str, start: int) -> Iterator[tuple[int, list[str]]]:
    """Cells of each row, with the number of its last line."""
    reader = csv.reader(lines, delimiter=delimiter)
    for cells in reader:
        yield start + reader.line_num, cells


def _filled(cell: str) -> bool:
    return cell.strip().lower() not in _BLANK


def _decimal(column: Sequence[tuple[int, str]], where: str, name: str) -> _Decimal | None:
    """The decimal separator of a column's numbers; None if they do not show."""
    examples: dict[_Decimal, tuple[int, str]] = {}
    for line, cell in column:
        for style, pattern in ((_Decimal.COMMA, _COMMA), (_Decimal.POINT, _POINT)):
            if pattern.fullmatch(cell.strip()):
                examples.setdefault(style, (line, cell.strip()))
    if len(examples) == len(_Decimal):
        (line, text), (other_line, other) = sorted(examples.values())
        raise UsageError(
            f"{where}: {printable(name)} is '{text}' in line {line} and '{other}' in line {other_line}; write all numbers with "
            "a decimal point"
        )
    return next(iter(examples), None)


def _check_clear(
    styles: Sequence[_Decimal | None], columns: Sequence[Sequence[tuple[int, str]]], delimiter: str, where: str
) -> None:
    """UsageError if 6,123 can be 6.123, because no other number of the table shows. Between commas a quoted 6,123 is 6123."""
    if delimiter == "," or any(styles):
        return
    for line, cell in (item for column in columns for item in column):
        if "," in cell and _GROUPS.fullmatch(cell.strip()):
            shown = cell.strip()[:_SHOWN]
            raise UsageError(
                f"{where}: line {line}: '{shown}' can be {shown.replace(',', '.')} or {shown.replace(',', '')}; write numbers "
                "with a decimal point and without separators"
            )


def _number(cell: str, style: _Decimal) -> str:
    """A number with a decimal point and without separators of thousands; anything else as it is."""
    stripped = cell.strip()
    if style is _Decimal.COMMA and (_COMMA.fullmatch(stripped) or _GROUPS.fullmatch(stripped)):
        return stripped.replace(".", "").replace(",", ".")
    if style is _Decimal.POINT and _THOUSANDS.fullmatch(stripped):
        return stripped.replace(",", "")
    return cell

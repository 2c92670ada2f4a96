"""CSV tables as spreadsheets write them: what is a number, a row, a header."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.csv_rows import read_csv
from pipeline.latency.costs.measurements import read_measurements
from pipeline.latency.load.output_lengths import parse_output_lengths

HEADER = "concurrency,k,tpot_ms,output_tok_s"


def _path(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_bytes(text.encode())
    return path


def _steps(tmp_path: Path, text: str) -> list[tuple[float, float, float | None]]:
    found = read_measurements(_path(tmp_path, text)).measured
    return [(one.requests, round(one.step_seconds, 7), one.throughput) for one in found]


@pytest.mark.parametrize(
    "text",
    [
        "concurrency;k;tpot_ms;output_tok_s\n1;0;6,5;153,8\n300;0;12,5;24.000,0\n",
        "concurrency\tk\ttpot_ms\toutput_tok_s\n1\t0\t6,5\t153,8\n300\t0\t12,5\t24.000\n",
        'concurrency,k,tpot_ms,output_tok_s\n1,0,"6,5","153,8"\n300,0,"12,5","24.000,0"\n',
        'concurrency,k,tpot_ms,output_tok_s\n1,0,6.5,153.8\n300,0,12.5,"24,000"\n',
        "concurrency;k;tpot_ms;output_tok_s\n1;0;6.50;153.8\n300;0;12.50;24,000\n",
        "# H100, 2026\n\nMy sweep,,,\n" + HEADER + "\n1,0,6.5,153.8\n\n,,,\n300,0,12.5,24000\n , ,,\n",
        f"\ufeff{HEADER}\r\n1,0,6.5,153.8,\r\n300,0,12.5,24000,\r\n",
        f"{HEADER}\r1,0,6.5,153.8\r300,0,12.5,24000\r",
    ],
    ids=["semicolons", "tabs", "quoted", "thousands", "points", "titles", "windows", "cr"],
)
def test_a_table_of_a_spreadsheet_is_read(text: str, tmp_path: Path) -> None:
    """Decimal commas, thousands, comments, empty rows, a byte order mark: the same two rows."""
    assert [(1, 0.0065, 153.8), (300, 0.0125, 24_000)] == _steps(tmp_path, text)


def test_six_decimals_are_no_thousands(tmp_path: Path) -> None:
    """6,123 beside 6,1 is 6.123; it was read as 6123."""
    assert [(1, 0.006123, 1.234), (2, 0.0061, 327.9)] == _steps(
        tmp_path, "concurrency;k;tpot_ms;output_tok_s\n1;0;6,123;1,234\n2;0;6,1;327,9\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("concurrency;k;tpot_ms\n1;0;6,123\n2;0;6,250\n", "line 2: '6,123' can be 6.123 or 6123; write numbers"),
        ("concurrency;k;tpot_ms\n1;0;6,1\n2;0;6.2\n", "tpot_ms is '6,1' in line 2 and '6.2' in line 3; write all"),
        ("concurrency,k,tpot_ms\n1,0,6,1\n2,0,6,2\n", "line 2: 4 values, but 3 columns; quote a value"),
        ("concurrency,k,tpot_ms,tpot_ms\n1,0,6,9\n", "line 2: two columns are named 'tpot_ms'; remove or rename one"),
        ("1,0,6.1\n2,0,6.2\n", "line 1: '1' is no name; the first line must name the columns"),
        ("concurrency k tpot_ms\n1 0 6\n", "only one column, 'concurrency k tpot_ms'; separate the columns"),
        ("concurrency,k,tpot_ms\n\n1,0,6\n2,0,six\n", "line 4: tpot_ms is 'six'"),
    ],
)
def test_what_could_be_read_in_two_ways_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    """With the line of the file; a shifted row and a column that is there twice were read as they came."""
    with pytest.raises(UsageError, match=re.escape(message)):
        read_measurements(_path(tmp_path, text))


def test_an_acceptance_rate_may_be_a_percentage(tmp_path: Path) -> None:
    """In each cell; a name in percent does not divide twice."""
    for header, cell in (("acceptance_rate", "50%"), ("acceptance_rate", '"50,0 %"'), ("acceptance rate (%)", "50%")):
        text = f"concurrency,k,tpot_ms,{header}\n1,2,6,{cell}\n"
        assert 2.0 == read_measurements(_path(tmp_path, text)).measured[0].tokens_per_step


def test_output_lengths_are_read_in_the_same_way(tmp_path: Path) -> None:
    """A title, a separator of thousands, an empty row."""
    path = _path(tmp_path, '# lengths\nid,output_tokens\na,"1,200"\n,\nb,100\n')

    assert [100, 1200] == parse_output_lengths(str(path)).tolist()


def test_a_markdown_table_is_one() -> None:
    """As benchmarks print it and issues show it: with borders, a rule, and text around it that is left out."""
    text = "main: n_kv_max = 4096, a\n\n| B | S_TG t/s |\n|---|---:|\n| 1 | 122.50 |\n|  **8** |  870.00 |\n\nllama_perf: 1, 2\n"
    table = read_csv(text, "bench.md")

    assert ("B", "S_TG t/s") == table.names
    assert [(5, ["1", "122.50"]), (6, ["8", "870.00"])] == [
        (row.line, [cell.strip() for cell in row.cells.values()]) for row in table.rows
    ]

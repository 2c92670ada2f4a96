"""Tables whose columns have names that nobody else uses: the line that reads them is offered, where one only fits."""

import re
import shlex
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Table, read_measurements


def _write(place: Path, header: str, *rows: str) -> Path:
    path = place / "sweep.csv"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def _offered(path: Path) -> dict[str, str]:
    with pytest.raises(UsageError) as found:
        read_measurements(path)
    said = re.findall(r"--column ('[^']*'|[^ ]+)", str(found.value))
    return dict(shlex.split(one)[0].split("=", 1) for one in said if "NAME" not in one)


def _followed(path: Path) -> tuple[dict[str, str], Table]:
    """The offered columns, and the table that is read with them."""
    columns = _offered(path)
    return columns, read_measurements(path, columns)


@pytest.mark.parametrize("name", ["aggregate_tps", "agg tok/s", "throughput (out tok/s)", "Total tokens per second"])
def test_a_throughput_with_another_name_is_offered(name: str, tmp_path: Path) -> None:
    """It rises with the load, and the time per token that follows is possible. The first token's time is another one."""
    path = _write(tmp_path, f"concurrency,{name},FTL(s)", "1,100,0.02", "8,640,0.05", "32,1600,0.2")
    columns, table = _followed(path)

    assert {"throughput": name} == columns
    assert [0.010, 0.0125, 0.020] == pytest.approx([one.step_seconds for one in table.measured])


def test_a_time_per_token_with_another_name_is_offered(tmp_path: Path) -> None:
    """With the unit that its name has."""
    columns, table = _followed(_write(tmp_path, "batch_size,token_time_ms", "1,45", "8,46", "64,62"))

    assert {"tpot": "token_time_ms"} == columns
    assert [0.045, 0.046, 0.062] == pytest.approx([one.step_seconds for one in table.measured])


def test_littles_law_finds_the_columns_of_a_table_without_one_known_name(tmp_path: Path) -> None:
    """Throughput times time per token is the number of users; runs and cards are no such number."""
    rows = ("1,1,8,98,10.1", "2,8,8,630,12.5", "3,32,8,1590,20")
    columns, table = _followed(_write(tmp_path, "run,users,cards,gen_tps,delay_ms", *rows))

    assert {"concurrency": "users", "throughput": "gen_tps", "tpot": "delay_ms"} == columns
    assert [1, 8, 32] == [one.requests for one in table.measured]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("concurrency,a_tps,b_tps", ("1,100,101", "8,640,650", "32,1600,1700")),  # two that fit
        ("concurrency,tps", ("1,100", "8,80", "32,50")),  # of each request, or a server that slows down
        ("concurrency,gain", ("1,1", "8,6", "32,20")),  # neither a rate nor a time
        ("concurrency,total_ms", ("1,5000", "8,6000", "32,9000")),  # too long for a token
        ("concurrency,first_token_ms", ("1,50", "8,60", "32,90")),
        ("users,gen_tps", ("1,100", "8,640")),  # nothing tells that these are requests
        ("users,gen_tps,delay_ms", ("1,100,10", "8,100,90", "32,100,20")),  # does not fit
    ],
)
def test_nothing_is_offered_where_none_fits_or_several(header: str, rows: tuple[str, ...], tmp_path: Path) -> None:
    """The message is as before."""
    path = _write(tmp_path, header, *rows)

    assert {} == _offered(path)


def test_a_table_that_is_read_has_no_offer(tmp_path: Path) -> None:
    """Other columns may fit as well."""
    path = _write(tmp_path, "concurrency,tpot_ms,aggregate_tps", "1,10,100", "8,12.5,640")

    assert [0.010, 0.0125] == pytest.approx([one.step_seconds for one in read_measurements(path).measured])

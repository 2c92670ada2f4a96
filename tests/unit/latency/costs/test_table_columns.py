"""Tables of others: what goes before what, what is refused, what is said. Each test notices what was broken on purpose."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import read_measurements
from pipeline.latency.load.output_lengths import parse_output_lengths
from tests.unit.latency.sweeps import DRAFTED, RESULT, write_results, write_table


@pytest.mark.parametrize(
    ("header", "row", "columns", "read"),
    [
        ("Users,K,tpot_ms", "4,0,10", {"concurrency": "users"}, (4.0, 1.0, 0.010)),
        ("concurrency,k,streams tpot", "4,0,0.01", {"tpot": "streams tpot"}, (4.0, 1.0, 0.010)),
        (
            "concurrency,k,tpot_ms,accepted pct",
            "4,2,10,50",
            {"draft_acceptance_rate": "accepted pct"},
            (4.0, 2.0, 0.020),
        ),
        ("concurrency,k,tpot_ms,acceptance_rate,draft_acceptance_rate", "4,3,10,0.7,0.5", {}, (4.0, 2.5, 0.025)),
        ("concurrency,k,tpot_ms,completed", "4,0,10,true", {}, (4.0, 1.0, 0.010)),
        ("concurrency,k,tpot_ms,ttft_ms", "4,0,10,-", {}, (4.0, 1.0, 0.010)),
        ("concurrency,k,tpot_ms,ttft_ms", "4,0,10,None", {}, (4.0, 1.0, 0.010)),
        ("running,k,output_tok_s,ttft_ms,tokens", "4,0,200,25,16", {}, (4.0, 1.0, 0.020)),
        (
            "max_concurrency,request_rate,request_throughput,k,tpot_ms,mean_e2el_ms",
            "8,4,4,0,20,4000",
            {},
            (8.0, 1.0, 0.02),
        ),
        ("running,k,throughput,tpot_p50_ms", "4,0,0.5,20", {}, (4.0, 1.0, 0.020)),
        ("concurrency,k,acceptance_length,itl_ms,tpot_ms", "4,1,1.3,10,10", {}, (4.0, 1.3, 0.013)),
        ("concurrency,k,acceptance_rate,itl_ms,tpot_ms", "4,0,0.5,25,10", {}, (4.0, 1.0, 0.010)),
        ("concurrency,acceptance_length,tpot_ms", "4,1.04,10", {}, (4.0, 1.0, 0.010)),
    ],
    ids=[
        "spelling",
        "ms in a word",
        "pct",
        "drafted first",
        "flag",
        "dash",
        "None",
        "running",
        "limit",
        "requests per s",
        "short",
        "plain",
        "rounded",
    ],
)
def test_tables_of_others_are_read_too(
    header: str, row: str, columns: dict[str, str], read: tuple[float, ...], tmp_path: Path
) -> None:
    """Spelling, units, order of columns, blank cells."""
    (one,) = read_measurements(write_table(tmp_path, header, row), columns).measured

    assert pytest.approx(read, rel=1e-4) == (one.requests, one.tokens_per_step, one.step_seconds)


def test_a_column_is_read_once(tmp_path: Path) -> None:
    """A column that is given as the concurrency is not the number of running requests as well."""
    path = write_table(tmp_path, "batch,k,tpot_ms,tokens", "4,0,10,129")
    (one,) = read_measurements(path, {"concurrency": "batch"}).measured

    assert pytest.approx(4 * (1 - 1 / 130)) == one.in_batch


def test_means_go_before_medians(tmp_path: Path) -> None:
    """Of the time per token and of TTFT."""
    path = write_table(
        tmp_path, "concurrency,k,median_tpot_ms,mean_tpot_ms,median_ttft_ms,mean_ttft_ms", "1,0,9,10,40,50"
    )
    (one,) = read_measurements(path).measured

    assert (pytest.approx(0.010), pytest.approx(0.05)) == (one.step_seconds, one.ttft)


def test_a_draft_length_by_counters_is_rounded(tmp_path: Path) -> None:
    """The last drafts of a request are cut off: 298 tokens in 100 drafts of 3."""
    path = write_results(tmp_path, RESULT | DRAFTED | {"spec_decode_draft_tokens": 298})

    assert 3 == read_measurements(path).measured[0].gamma


def test_a_note_is_for_what_it_says(tmp_path: Path) -> None:
    """And is not there otherwise."""

    def notes(header: str, *rows: str) -> str:
        return " ".join(read_measurements(write_table(tmp_path, header, *rows)).notes)

    assert "accepted / drafted tokens" not in notes("concurrency,k,draft_acceptance_rate,tpot_ms", "4,3,0.5,10")
    assert "itl_ms is neither a step nor" in notes("concurrency,k,itl_ms,tpot_ms", "4,0,25,10")
    for running, far in ((3.3, False), (4, False), (3.1, True), (4.1, True)):
        found = notes("concurrency,running,k,tpot_ms", f"4,{running},0,10")
        assert far == ("far from the concurrency" in found)


def test_places_serve_at_least_one_request(tmp_path: Path) -> None:
    """Of 2 requests on 4 places none is prefilled beside another that decodes."""
    (one,) = read_measurements(write_table(tmp_path, "concurrency,k,tpot_ms,completed", "4,0,10,2")).measured

    assert 1.0 == one.requests_per_place


def test_short_and_missing_output_lengths(tmp_path: Path) -> None:
    """A request of one token counts as one of two; a cell without a length is no request."""
    path = tmp_path / "lengths.csv"
    path.write_text("id,Output Tokens\na,1\nb,\nc,7\n")  # spelt as in other tables

    assert [2, 7] == parse_output_lengths(str(path)).tolist()
    assert [1000] == parse_output_lengths("1e3").tolist()  # a traceback
    with pytest.raises(UsageError, match="the mean must be below the cap"):
        parse_output_lengths("300:300")


def test_what_a_result_says_goes_before_what_is_derived(tmp_path: Path) -> None:
    """Its mean latency; and its many other keys are not listed as not read."""
    times = {"mean_tpot_ms": 15.0, "mean_ttft_ms": 20.0, "mean_e2el_ms": 2000.0}
    path = write_results(tmp_path, RESULT | times | {"request_throughput": 1.9, "total_input_tokens": 5})
    table = read_measurements(path)

    assert pytest.approx(3.8 * (1 - 1 / 129)) == table.measured[0].in_batch
    assert not any("not read" in note for note in table.notes)


def test_requests_in_prefill_do_not_wait_where_tpot_is_derived(tmp_path: Path) -> None:
    """Half of a request's time is its prefill at every load; TPOT from throughput and TTFT."""
    path = write_table(
        tmp_path, "concurrency,k,output_tok_s,ttft_ms,tokens", "1,0,16,500,16", "4,0,64,500,16", "16,0,256,500,16"
    )

    assert [1, 4, 16] == [one.requests for one in read_measurements(path).measured]


@pytest.mark.parametrize(("column", "value"), [("tpot (milliseconds)", 20), ("tpot_us", 20_000)])
def test_units_have_several_names(column: str, value: float, tmp_path: Path) -> None:
    """20 ms."""
    (one,) = read_measurements(
        write_table(tmp_path, f"concurrency,k,{column}", f"4,0,{value}"), {"tpot": column}
    ).measured

    assert pytest.approx(0.02) == one.step_seconds


def test_an_empty_draft_length_leaves_the_counters(tmp_path: Path) -> None:
    """`"k": null` beside three drafted tokens a draft."""
    assert 3 == read_measurements(write_results(tmp_path, RESULT | DRAFTED | {"k": None})).measured[0].gamma


@pytest.mark.parametrize(
    ("column", "factor"),
    [("latency (min)", "60"), ("latency_hours", "3600"), ("Latency [h]", "3600"), ("e2el_ns", "1e-09")],
)
def test_a_unit_that_is_not_read_needs_its_factor(column: str, factor: str, tmp_path: Path) -> None:
    """Minutes were read as seconds where the column was named, as the message about the time per token says to do; `min` may
    also be the minimum."""
    seconds = (2.0, 2.4, 4.0)
    rows = [f"{load},201,{one / float(factor):.6g}" for load, one in zip((1, 8, 32), seconds, strict=True)]
    path = write_table(tmp_path, f"concurrency,tokens,{column}", *rows)
    with pytest.raises(UsageError, match=re.escape(f"'latency={column}*{factor}'")):
        read_measurements(path, {"latency": column})

    table = read_measurements(path, {"latency": f"{column}*{factor}"})
    assert [0.010, 0.012, 0.020] == pytest.approx([one.step_seconds for one in table.measured], rel=1e-4)


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        (
            "concurrency,output_tok_s,tpot_ms",
            ("1,1000,10", "8,6400,12"),
            "line 2: 1,000 tokens/s of 1 requests, and 10 ms",
        ),
        ("concurrency,output_tok_s,tpot_ms", ("1,98,10", "8,640,12"), ""),
        ("concurrency,output_tok_s,tpot_ms,tokens", ("1,190,10,2", "8,1200,12,2"), ""),  # each first token needs none
    ],
)
def test_more_tokens_than_the_requests_can_have_are_pointed_out(
    header: str, rows: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """A throughput with the prompts, or a time in another unit: which of the two the table does not tell."""
    notes = " ".join(read_measurements(write_table(tmp_path, header, *rows)).notes)
    assert (said, bool(said)) == (said if said in notes else notes, "one of the two is something else" in notes)

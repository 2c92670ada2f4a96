"""Measurements of servers: CSV tables and benchmark results."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Measurement, read_measurements
from pipeline.latency.costs.output_rounds import tokens_per_round
from tests.unit.latency.costs.offers import followed
from tests.unit.latency.sweeps import DRAFTED, RESULT, write_results, write_table

PUBLISHED = "concurrency,k,mean_acceptance_length,tpot_p50_ms,ttft_p50_ms,output_tok_s"


def test_a_published_sweep_is_read_as_it_is(tmp_path: Path) -> None:
    """Step time is TPOT times tokens per step; the column name says milliseconds."""
    path = write_table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400", "8,0,,22,60,360")

    assert [
        Measurement(
            where=f"{path}: line 2",
            requests=4,
            gamma=3,
            tokens_per_step=2.5,
            step_seconds=pytest.approx(0.025),
            ttft=0.05,
            throughput=400,
        ),
        Measurement(
            where=f"{path}: line 3",
            requests=8,
            gamma=0,
            tokens_per_step=1.0,
            step_seconds=pytest.approx(8 / 360),  # not the median of 22 ms
            ttft=0.06,
            throughput=360,
        ),
    ] == read_measurements(path).measured


@pytest.mark.parametrize(
    ("header", "row", "requests", "step"),
    [
        (
            "rate,gamma,latency,tokens,ttft,acceptance_length",
            "2,2,3.0,101,0.5,2",
            6.0,
            tokens_per_round(2, 2, 101) * 2.5 / 100,
        ),
        ("concurrency,gamma,output_tok_s,alpha", "6,1,300,0.5", 6.0, 1.5 * 6 / 300),
        ("running,k,tpot,draft_acceptance_rate", "6,4,0.01,0.25", 6.0, 2 * 0.01),
        ("request_rate,request_throughput,k,latency_ms,tokens", "3,2.9,0,1000,11", 3.9, 0.1),
    ],
)
def test_missing_quantities_are_derived(header: str, row: str, requests: float, step: float, tmp_path: Path) -> None:
    """Concurrency by Little's law, TPOT from latency or throughput, tokens per step from acceptance."""
    (found,) = read_measurements(write_table(tmp_path, header, row)).measured

    assert pytest.approx(requests) == found.requests
    assert pytest.approx(step) == found.step_seconds


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_detected_from_the_header(delimiter: str, tmp_path: Path) -> None:
    """Comma, semicolon or tab."""
    path = write_table(tmp_path, *(line.replace(",", delimiter) for line in (PUBLISHED, "4,3,2.5,10,50,400")))

    assert [(4.0, 3, 2.5)] == [
        (one.requests, one.gamma, one.tokens_per_step) for one in read_measurements(path).measured
    ]


def test_columns_and_values_can_be_named(tmp_path: Path) -> None:
    """For tables with other column names or missing columns."""
    path = write_table(tmp_path, "users,time per token (ms)", "4,10")
    (found,) = read_measurements(
        path, {"concurrency": "users", "tpot": "time per token (ms)"}, {"gamma": 3, "acceptance_length": 2}
    ).measured

    assert (4, 3, pytest.approx(0.02)) == (found.requests, found.gamma, found.step_seconds)


def test_results_of_vllm_bench_are_read(tmp_path: Path) -> None:
    """Draft length comes from the counters, 0 without them; an infinite request rate is a closed loop."""
    times = {"median_tpot_ms": 12.0, "mean_tpot_ms": 13.0, "median_ttft_ms": 80.0}
    run = RESULT | times | {"total_input_tokens": 5000, "request_rate": "inf", "request_throughput": 1.5}
    path = write_results(tmp_path, run, run | DRAFTED)

    assert [
        Measurement(
            where=f"{path}: result 1",
            requests=4,
            gamma=0,
            tokens_per_step=1.0,
            step_seconds=pytest.approx(0.013),
            output_tokens=128.0,
            ttft=0.08,
            requests_per_place=2.5,
            in_batch=pytest.approx(4 * (1 - 1 / 129)),
        ),
        Measurement(
            where=f"{path}: result 2",
            requests=4,
            gamma=3,
            tokens_per_step=2.2,
            step_seconds=pytest.approx(tokens_per_round(2.2, 3, 128) * 0.013),
            token_seconds=pytest.approx(0.013),
            output_tokens=128.0,
            ttft=0.08,
            requests_per_place=2.5,
            in_batch=pytest.approx(4 * (1 - 1 / (127 / tokens_per_round(2.2, 3, 128) + 2))),
        ),
    ] == read_measurements(path).measured


@pytest.mark.parametrize(
    ("throughput", "requests"), [(1.86, 3.72), (2.1, 4.0), (0.5, 4.0)], ids=["partly full", "inexact", "another unit"]
)
def test_a_closed_loop_counts_the_requests_that_were_there(throughput: float, requests: float, tmp_path: Path) -> None:
    """The batch fills at the start and empties at the end: 1.86 requests per second times 2 s. Not above the concurrency, and
    not far below it. A new request waits for the running step."""
    run = RESULT | {"request_throughput": throughput, "mean_tpot_ms": 15.0, "mean_ttft_ms": 2000 - 127 * 15.0}
    (one,) = read_measurements(write_results(tmp_path, run)).measured
    steps = 127 + 2  # of a request: it waits for one, is prefilled in one, and each further token takes one

    assert 4.0 == one.requests
    assert pytest.approx(requests * (1 - 1 / steps)) == one.in_batch


def test_an_open_loop_of_vllm_bench_uses_its_throughput(tmp_path: Path) -> None:
    """Not the concurrency limit; the drain after the last arrival is not taken for overload, and overload is said."""
    run = {
        "completed": 200,
        "duration": 110.0,
        "total_output_tokens": 20200,
        "request_rate": 2.0,
        "request_throughput": 200 / 110,
        "max_concurrency": 256,
        "mean_tpot_ms": 95.0,
        "mean_ttft_ms": 500.0,
    }
    found, _ = read_measurements(write_results(tmp_path, run, run)).measured

    assert pytest.approx(1 + 200 / 110 * 9.5) == found.requests
    assert pytest.approx(0.095) == found.step_seconds
    table = read_measurements(write_results(tmp_path, run | {"duration": 160.0, "request_throughput": 1.25}))
    assert pytest.approx(1 + 200 / 160 * 9.5) == table.measured[0].requests
    assert any("were left when arrivals ended" in note for note in table.notes)


def test_a_guidellm_report_is_read(tmp_path: Path) -> None:
    """Means of successful requests; draft length and acceptance are given separately."""
    means = {
        "request_concurrency": 7.5,
        "requests_per_second": 2.5,
        "inter_token_latency_ms": 20.0,
        "time_to_first_token_ms": 100.0,
        "request_latency": 3.0,
        "output_token_count": 128.0,
        "prompt_token_count": 256.0,
    }
    metrics = {name: {"successful": {"mean": mean}, "total": {"mean": 2 * mean}} for name, mean in means.items()}
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"benchmarks": [{"metrics": metrics}]}))
    (found,) = read_measurements(path, values={"gamma": 3, "acceptance_length": 2.5}).measured

    assert (
        Measurement(
            where=f"{path}: result 1",
            requests=15.0,
            gamma=3,
            tokens_per_step=2.5,
            step_seconds=pytest.approx(0.02 * tokens_per_round(2.5, 3, 128)),
            token_seconds=pytest.approx(0.02),
            output_tokens=128.0,
            ttft=0.1,
            in_batch=pytest.approx(15 * (1 - 1 / (127 / tokens_per_round(2.5, 3, 128) + 2))),
        )
        == found
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((PUBLISHED,), "no measurements in the file"),
        ((PUBLISHED, "4,3,2.5,-10,50,400"), "line 2: tpot is -0.01 s, but must be above 0"),
        (
            ("k,concurrency,tpot", "0,1,20"),
            "line 2: TPOT is 20 s; possible are 0.05 ms to 0.5 s. Times in milliseconds need ms in the column's name",
        ),
        ((PUBLISHED, "4,3,2.5,ten,50,400"), "line 2: tpot_p50_ms is 'ten', which is not a number"),
        ((PUBLISHED, "4,3,4.5,10,50,400"), "line 2: 4.5 tokens per step at draft length 3; possible are 1 to 4"),
        ((PUBLISHED, "4,1.5,2,10,50,400"), "line 2: draft length 1.5; give a whole number from 0 to 128"),
        ((PUBLISHED, "0,1,2,10,50,400"), "line 2: 0 concurrent requests"),
        ((PUBLISHED, "1e9,1,2,10,50,400"), "line 2: 1e+09 concurrent requests; give more than 0 and at most 100,000"),
        ((PUBLISHED, "4,three,2,10,50,400"), "line 2: k is 'three', which is not a number"),
        ((PUBLISHED, "4,1,2,10,inf,400"), "line 2: ttft_p50_ms is 'inf', which is not a number"),
        (
            ("concurrency,k,tpot,alpha", "4,3,0.01,70"),
            "line 2: acceptance_rate is 70; give a value from 0 to 1 (70% is 0.7)",
        ),
        (
            ("concurrency,k,tpot,draft_acceptance_rate", "4,3,0.01,-1"),
            "line 2: draft_acceptance_rate is -1; give a value",
        ),
        (
            ("concurrency,acceptance_length,tpot", "4,2.5,0.01"),
            "line 2: 2.5 tokens per step, but the draft length is unknown; name",
        ),
        (
            ("concurrency,k,acceptance_length,tpot", "4,0,2.5,0.01"),
            "line 2: 2.5 tokens per step, but the draft length is 0",
        ),
        (("concurrency,k,output_tok_s,ttft,tokens", "2,0,100,9,100"), "line 2: TPOT is -0.0707 s"),
        (("k,tpot", "0,0.1"), "line 2: the number of concurrent requests is unknown"),
        (
            ("concurrency,k", "1,0"),
            "line 2: TPOT is unknown; columns with a value are concurrency, k; name its column with",
        ),
        (("concurrency,k,itl", "1,2,0.1"), "line 2: draft length 2, but the acceptance is unknown"),
        (
            ("rate,served_rate,latency,tokens", "9,5,30,100"),
            "line 2: completed 5 of 9 requests/s: offered load exceeds capacity",
        ),
    ],
)
def test_a_bad_table_is_one_line(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Names file, line and remedy."""
    path = write_table(tmp_path, *lines)
    with pytest.raises(UsageError, match=re.escape(message)) as found:
        read_measurements(path)

    assert str(path) in str(found.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ({"completed": "many"}, "incomplete result of `vllm bench serve`"),
        ({"completed": 1, "total_output_tokens": None}, "incomplete result of `vllm bench serve`"),
        (
            {"some": "thing"},
            "no result of `vllm bench serve`, AIPerf or GenAI-Perf, inference-perf, trtllm-bench",
        ),
        ({"benchmarks": [{"metrics": {}}]}, "unsupported GuideLLM schema; convert it to CSV"),
    ],
)
def test_a_file_of_another_kind_is_one_line(content: Any, message: str, tmp_path: Path) -> None:
    """Names the file."""
    path = tmp_path / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError, match=re.escape(message)):
        read_measurements(path)


def test_unknown_names_are_errors(tmp_path: Path) -> None:
    """A missing column, an unknown quantity, a missing file."""
    path = write_table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400")
    with pytest.raises(UsageError, match="no column 'users'; columns are concurrency, k"):
        read_measurements(path, {"concurrency": "users"})
    with pytest.raises(UsageError, match="'speed' is not a known quantity; known are running, concurrency"):
        read_measurements(path, {"speed": "k"})
    with pytest.raises(UsageError, match=r"absent\.csv: No such file"):
        read_measurements(tmp_path / "absent.csv")


def test_a_value_that_contradicts_the_table_is_an_error(tmp_path: Path) -> None:
    """Appended values are for quantities without a column."""
    path = write_table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400")

    with pytest.raises(UsageError, match="line 2: the row has gamma 3; remove gamma=5"):
        read_measurements(path, values={"gamma": 5})
    assert 3 == read_measurements(path, values={"gamma": 3}).measured[0].gamma


@pytest.mark.parametrize(
    ("header", "row", "read"),
    [
        ("Concurrency,Draft Length,Accept Length,TPOT (ms)", "4,3,2.5,10", (4.0, 3, 2.5, 0.025)),
        ("batch size,K,Acceptance rate (%),tpot_ms", "4,2,50,10", (4.0, 2, 2.0, 0.020)),
        ("concurrency,k,tpot_ms,ttft_ms,request_rate", "4,0,10,N/A,inf", (4.0, 0, 1.0, 0.010)),
        ("max_concurrency,request_rate,request_throughput,k,tpot_ms,mean_e2el_ms", "256,4,4,0,20,4000", (17.0, 0, 1.0, 0.02)),
        ("concurrency,k,output_tok_s,ttft_ms,tokens", "4,0,179.77,25,16", (4.0, 0, 1.0, 0.022066)),
        ("concurrency,k,step,tpot_ms", "4,0,1,20", (4.0, 0, 1.0, 0.020)),
        ("concurrency,k,accept_length,ITL (ms)", "4,3,2.5,25", (4.0, 3, 2.5, 0.025)),
        ("k;concurrency;output throughput", "0;64;2,116.4", (64.0, 0, 1.0, 64 / 2116.4)),
    ],
    ids=["names", "percent", "blank", "limit", "throughput", "number of a step", "between chunks", "thousands"],
)  # fmt: skip
def test_tables_of_others_are_read(
    header: str, row: str, read: tuple[float, int, float, float], tmp_path: Path
) -> None:
    """Names in other spellings; no value; an open loop's limit is no batch; throughput counts the first token; `step` may be a
    number."""
    (one,) = followed(write_table(tmp_path, header, row)).measured

    assert pytest.approx(read, rel=1e-4) == (one.requests, one.gamma, one.tokens_per_step, one.step_seconds)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("concurrency,drafts,acceptance_rate,tpot_ms", "1,3,0.5,10"), "acceptance rate 0.5, but the draft length is unknown"),
        (("concurrency,accept_length,tpot_ms", "1,2.9,10"), "2.9 tokens per step, but the draft length is unknown"),
        (("concurrency,acceptance_length,tpot", "4,1.3,0.01"), "1.3 tokens per step, but the draft length is unknown"),
        (("rate,served_rate,latency,tokens", "10,9.4,3,100"), "completed 9.4 of 10 requests/s"),
        (("concurrency,k,ttft,latency,tokens,tpot_ms", "1,0,16,4.1,200,20"), "latency is 4.1 s, but TTFT and time per token"),
        (("concurrency,ttft_ms,latency_ms,tokens", "1,5000,2000,200"), "TTFT of 5 s is longer than the latency of 2 s"),
        (("concurrency,tpot_ms", "1_0,10"), "line 2: concurrency is '1_0', which is not a number"),
        (("concurrency,itl_ms,tpot_ms", "1,25,10"), "the time between chunks is 2.5 times the time per token, as with drafts"),
        (("n,k,throughput,tpot_ms", "4,0,0.5,20"), "the number of concurrent requests is unknown"),
        (("requests,k,output_tok_s,tpot_ms", "4,0,200,20"), "'requests' can be how many were sent"),
        (("concurrency,k,output_tok_s", "1,0,0.24"), "a throughput must be in tokens per second"),
        (("concurrency,k,ttft,latency,tokens,tpot_ms", "1,0,50,4.1,200,20"), "latency is 4.1 s, but TTFT and time per token"),
        (("concurrency,k,latency_s,tokens,tpot_ms", "1,0,5100,256,20"), "latency is 5.1e+03 s, but TTFT and time per token"),
        (("concurrency,k,ttft,tpot", "1,0,60,0.02"), "TTFT of one request is 60 s, the time per token 0.02 s"),
    ],
)  # fmt: skip
def test_what_could_be_read_wrongly_is_refused(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Drafts without a draft length, throughput in requests per second, times in another unit, an overloaded server, what Python
    takes for 10."""
    with pytest.raises(UsageError, match=re.escape(message)):
        read_measurements(write_table(tmp_path, *lines))


def test_results_of_sglang_need_a_draft_length(tmp_path: Path) -> None:
    """They have an acceptance length, but no draft length."""
    path = write_results(tmp_path, RESULT | {"mean_itl_ms": 26.1, "accept_length": 2.9})
    with pytest.raises(UsageError, match=r"2\.9 tokens per step, but the draft length is unknown.*FILE:gamma=3"):
        read_measurements(path)
    (one,) = read_measurements(path, values={"gamma": 4}).measured

    assert (4, 2.9, pytest.approx(0.0261)) == (one.gamma, one.tokens_per_step, one.step_seconds)


@pytest.mark.parametrize(
    ("column", "rows", "requests"),
    [
        ("throughput", ["1,0,0.5,20", "4,0,,21", "16,0,6,25"], [1, 4, 16]),  # requests/s, one cell is blank
        ("output_tok_s", ["1,0,49.8,20", "4,0,47,21", "16,0,39.5,25"], [1, 4, 16]),  # of each request
        (
            "output_tok_s",
            ["1,0,20,20", "4,0,80,20", "16,0,320,20"],
            [1, 4, 16],
        ),  # most of a request's time is its prefill
        ("output_tok_s", ["1,0,50,20", "4,0,200,20", "16,0,300,20"], [1, 4, 6]),  # 6 ran, the others waited
        ("throughput", ["1,0,12.5,20", "4,0,50,20", "16,0,100,20"], [1, 4, 16]),  # of requests of 4 tokens
        ("output_tok_s", ["1,0,50,20", "16,0,600,20"], [1, 16]),  # 12 decode
        ("output_tok_s", ["1,0,50,20", "16,0,520,20"], [1, 10.4]),
        ("output_tok_s", ["4,0,100,20", "64,0,400,20"], [2, 8]),  # no load at which none waits
        ("output_tok_s", ["128,0,3200,20", "256,0,3200,20"], [64, 64]),  # 64 ran at both
    ],
)
def test_a_throughput_tells_the_batch_only_in_tokens_of_all(
    column: str, rows: list[str], requests: list[float], tmp_path: Path
) -> None:
    """Not in requests per second, not of each request, and not where prefills take the same share at every load. Shares of the
    concurrency around the limits."""
    table = read_measurements(write_table(tmp_path, f"concurrency,k,{column},tpot_ms", *rows))

    assert pytest.approx(requests) == [one.requests for one in table.measured]
    assert (requests[-1] != 16) == any("the server was full" in note for note in table.notes)


def test_columns_that_were_not_read_are_named(tmp_path: Path) -> None:
    """So that a misspelt one is noticed."""
    table = read_measurements(write_table(tmp_path, "concurrency,k,tpot_ms,gpu,note", "4,0,10,H100,x"))

    assert "not read: gpu, note" in table.notes


def test_a_value_does_not_replace_those_of_a_result(tmp_path: Path) -> None:
    """`FILE:gamma=3` beside rows of other draft lengths."""
    path = write_results(tmp_path, RESULT | {"k": "0"}, RESULT | {"k": "3"})
    with pytest.raises(UsageError, match="result 1: the row has gamma 0; remove gamma=3"):
        read_measurements(path, values={"gamma": 3, "acceptance_length": 2.4})


def test_a_given_column_may_have_empty_cells(tmp_path: Path) -> None:
    """Plain rows have no acceptance; a column that no row has is an error."""
    path = write_table(tmp_path, "concurrency,k,acceptance_rate,tpot_ms", "1,0,,20", "1,3,0.7,10")
    plain, drafted = read_measurements(path, {"acceptance_rate": "acceptance_rate"}).measured

    assert (1.0, pytest.approx(2.533)) == (plain.tokens_per_step, drafted.tokens_per_step)
    with pytest.raises(UsageError, match="no column 'rate'; columns are concurrency, k, acceptance_rate, tpot_ms"):
        read_measurements(path, {"acceptance_rate": "rate"})


@pytest.mark.parametrize("row", ["1,0,0,20", "1,1,0.7,14"])
def test_a_length_below_one_does_not_count_the_targets_own_token(row: str, tmp_path: Path) -> None:
    """In any row, plain or with one draft token: then it counts in none."""
    path = write_table(tmp_path, "concurrency,k,acceptance_length,tpot_ms", row, "1,3,1.53,10")
    table = read_measurements(path)

    assert pytest.approx(2.53) == table.measured[1].tokens_per_step
    assert any("1 was added for the target's own" in note for note in table.notes)


def test_a_long_time_to_first_token_is_pointed_out(tmp_path: Path) -> None:
    """A server for 64 requests, without a throughput that would tell."""
    rows = ["1,0,20,60,100", "64,0,30,200,100", "128,0,30,3000,100"]
    notes = read_measurements(write_table(tmp_path, "concurrency,k,tpot_ms,ttft_ms,tokens", *rows)).notes

    assert any("from 128 requests on TTFT is more than half of the decoding time" in note for note in notes)

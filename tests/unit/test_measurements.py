"""Measurements of servers, as people and tools write them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Measurement, read_measurements

PUBLISHED = "concurrency,k,mean_acceptance_length,tpot_p50_ms,ttft_p50_ms,output_tok_s"


def _table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_published_sweep_is_read_as_it_is(tmp_path: Path) -> None:
    """A step gives a request so many tokens, each after so long; milliseconds by the column's name."""
    path = _table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400", "8,0,,22,60,360")

    assert [
        Measurement(
            where=f"{path}: line 2",
            requests=4,
            gamma=3,
            tokens_per_step=2.5,
            step_seconds=pytest.approx(0.025),
            ttft=0.05,
        ),
        Measurement(
            where=f"{path}: line 3",
            requests=8,
            gamma=0,
            tokens_per_step=1.0,
            step_seconds=pytest.approx(0.022),
            ttft=0.06,
        ),
    ] == read_measurements(path)


@pytest.mark.parametrize(
    ("header", "row", "requests", "step"),
    [
        ("rate,gamma,latency,tokens,ttft,omega", "2,2,3.0,101,0.5,2", 7.0, 2 * 2.5 / 100),
        ("concurrency,gamma,throughput,acceptance_rate", "6,1,300,0.5", 6.0, 1.5 * 6 / 300),
        ("batch,k,tpot,draft_acceptance_rate", "6,4,0.01,0.25", 6.0, 2 * 0.01),
        ("request_rate,request_throughput,k,latency_ms,tokens", "3,2.9,0,1000,11", 3.9, 0.1),
    ],
)
def test_what_is_not_said_follows(header: str, row: str, requests: float, step: float, tmp_path: Path) -> None:
    """Requests at once by Little's law, a token's time from latency or throughput, its yield from what is accepted."""
    (found,) = read_measurements(_table(tmp_path, header, row))

    assert pytest.approx(requests) == found.requests
    assert pytest.approx(step) == found.step_seconds


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_parts_columns_is_seen_in_the_header(delimiter: str, tmp_path: Path) -> None:
    """As spreadsheets write them."""
    path = _table(tmp_path, *(line.replace(",", delimiter) for line in (PUBLISHED, "4,3,2.5,10,50,400")))

    assert [(4.0, 3, 2.5)] == [(one.requests, one.gamma, one.tokens_per_step) for one in read_measurements(path)]


def test_columns_and_values_can_be_named(tmp_path: Path) -> None:
    """For tables that call them otherwise, or leave them out."""
    path = _table(tmp_path, "users,time per token (ms)", "4,10")
    (found,) = read_measurements(
        path, {"requests": "users", "tpot": "time per token (ms)"}, {"gamma": 3, "acceptance_length": 2}
    )

    assert (4, 3, pytest.approx(0.02)) == (found.requests, found.gamma, found.step_seconds)


def test_results_of_vllm_bench_are_read(tmp_path: Path) -> None:
    """Draft lengths from its counters, none where it counted none; a closed loop's rate is not asked for."""
    run = {
        "completed": 10,
        "total_input_tokens": 5000,
        "total_output_tokens": 1280,
        "max_concurrency": 4,
        "request_rate": "inf",
        "request_throughput": 1.5,
        "median_tpot_ms": 12.0,
        "mean_tpot_ms": 13.0,
        "median_ttft_ms": 80.0,
    }
    drafted = {"spec_decode_num_drafts": 100, "spec_decode_draft_tokens": 300, "spec_decode_acceptance_length": 2.2}
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in (run, run | drafted)))

    assert [
        Measurement(
            where=f"{path}: result 1",
            requests=4,
            gamma=0,
            tokens_per_step=1.0,
            step_seconds=pytest.approx(0.012),
            output_tokens=128.0,
            ttft=0.08,
        ),
        Measurement(
            where=f"{path}: result 2",
            requests=4,
            gamma=3,
            tokens_per_step=2.2,
            step_seconds=pytest.approx(2.2 * 0.012),
            output_tokens=128.0,
            ttft=0.08,
        ),
    ] == read_measurements(path)


def test_an_open_loop_of_vllm_bench_is_what_it_served(tmp_path: Path) -> None:
    """Not the most that it allowed at once; and the drain after the last arrival is no sign of a growing line."""
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
    path = tmp_path / "run.json"
    path.write_text("\n".join(json.dumps(one) for one in (run, run)))  # as --append-result leaves it
    found, _ = read_measurements(path)

    assert pytest.approx(1 + 200 / (110 - 10) * 10) == found.requests
    assert pytest.approx(0.095) == found.step_seconds
    path.write_text(json.dumps(run | {"duration": 160.0}))
    with pytest.raises(UsageError, match="beyond stability"):
        read_measurements(path)


def test_a_guidellm_report_is_read(tmp_path: Path) -> None:
    """Means of requests that were answered; what was drafted is said beside it."""
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
    (found,) = read_measurements(path, values={"gamma": 3, "acceptance_length": 2.5})

    assert (
        Measurement(
            where=f"{path}: result 1",
            requests=15.0,
            gamma=3,
            tokens_per_step=2.5,
            step_seconds=pytest.approx(0.05),
            output_tokens=128.0,
            ttft=0.1,
        )
        == found
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((PUBLISHED,), "no measurement in it"),
        ((PUBLISHED, "4,3,2.5,-10,50,400"), "line 2: tpot is -0.01 s, which is no time that anything takes"),
        (("k,concurrency,tpot", "0,1,20"), "line 2: a token takes 20 s; if these are milliseconds, call the column so"),
        ((PUBLISHED, "4,3,2.5,ten,50,400"), "line 2: tpot_p50_ms is 'ten', which is no number"),
        ((PUBLISHED, "4,3,4.5,10,50,400"), "line 2: 4.5 tokens a step at draft length 3; there can be 1 to 4"),
        ((PUBLISHED, "4,1.5,2,10,50,400"), "line 2: a draft length of 1.5; give whole numbers from 0"),
        ((PUBLISHED, "0,1,2,10,50,400"), "line 2: 0 requests at once"),
        ((PUBLISHED, "1e9,1,2,10,50,400"), "line 2: 1e+09 requests at once; give more than 0, and at most 100,000"),
        ((PUBLISHED, "4,nan,2,10,50,400"), "line 2: k is 'nan', which is no number"),
        ((PUBLISHED, "4,1,2,10,inf,400"), "line 2: ttft_p50_ms is 'inf', which is no number"),
        (
            ("concurrency,k,tpot,alpha", "4,3,0.01,70"),
            "line 2: acceptance_rate is 70; give a share from 0 to 1 (70% is 0.7)",
        ),
        (
            ("concurrency,k,tpot,draft_acceptance_rate", "4,3,0.01,-1"),
            "line 2: draft_acceptance_rate is -1; give a share",
        ),
        (
            ("concurrency,omega,tpot", "4,2.5,0.01"),
            "line 2: 2.5 tokens a step, and nothing says its draft length; name a",
        ),
        (("concurrency,k,omega,tpot", "4,0,2.5,0.01"), "line 2: 2.5 tokens a step, and its draft length is 0"),
        (("concurrency,k,throughput,ttft,tokens", "2,0,100,9,100"), "line 2: a token takes -0.07 s"),
        (("k,tpot", "0,0.1"), "line 2: nothing says how many requests are served at once"),
        (
            ("concurrency,k", "1,0"),
            "line 2: nothing says what a token takes; there are concurrency, k; name a column by",
        ),
        (("concurrency,k,tpot", "1,2,0.1"), "line 2: drafts 2 tokens, and nothing says how many are accepted"),
        (
            ("rate,served_rate,latency,tokens", "9,5,30,100"),
            "line 2: 5 requests a second were served of 9: beyond stability",
        ),
    ],
)
def test_a_bad_table_is_one_line(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Naming file, line and remedy."""
    path = _table(tmp_path, *lines)
    with pytest.raises(UsageError, match=re.escape(message)) as found:
        read_measurements(path)

    assert str(path) in str(found.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "this is no JSON"),
        ({"completed": "many"}, "not a whole result of `vllm bench serve`"),
        ({"completed": 1, "total_output_tokens": None}, "not a whole result of `vllm bench serve`"),
        ({"some": "thing"}, "neither a result of `vllm bench serve` nor a GuideLLM report"),
        ({"benchmarks": [{"metrics": {}}]}, "result 1: a GuideLLM report of another schema"),
    ],
)
def test_a_file_of_another_kind_is_one_line(content: Any, message: str, tmp_path: Path) -> None:
    """Naming it."""
    path = tmp_path / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError, match=re.escape(message)):
        read_measurements(path)


def test_names_that_are_none_are_told(tmp_path: Path) -> None:
    """Of a column that is not there, of a quantity that does not exist, of a file that is not there."""
    path = _table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400")
    with pytest.raises(UsageError, match="no column 'users'; there are concurrency, k"):
        read_measurements(path, {"requests": "users"})
    with pytest.raises(UsageError, match="'speed' is nothing that is measured; there are requests, rate"):
        read_measurements(path, {"speed": "k"})
    with pytest.raises(UsageError, match=r"absent\.csv: No such file"):
        read_measurements(tmp_path / "absent.csv")


def test_what_a_table_says_is_not_said_otherwise(tmp_path: Path) -> None:
    """A value behind the file is for what no column says."""
    path = _table(tmp_path, PUBLISHED, "4,3,2.5,10,50,400")

    with pytest.raises(UsageError, match="line 2: says itself that gamma is 3; leave gamma=5 out"):
        read_measurements(path, values={"gamma": 5})
    assert 3 == read_measurements(path, values={"gamma": 3})[0].gamma

"""Names and units of other engines' tables, and what a throughput is of."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.escaping.secrets import without_secrets
from pipeline.latency.costs.measurements import read_measurements
from tests.unit.latency.costs.offers import followed
from tests.unit.latency.sweeps import read_table


@pytest.mark.parametrize(
    ("header", "row", "read"),
    [
        ("Concurrency,Inter Token Latency (ms),Time To First Token (ms)", "4,10,30", (4, 0.01, 0.03, 0)),
        ("Concurrency,Avg TPOT [ms],Total Output Throughput (tokens/sec)", "4,10,390", (4, 0.01, 0, 0)),
        ("num_concurrent_requests,mean_inter_token_latency_s,mean_ttft_s", "4,0.01,0.03", (4, 0.01, 0.03, 0)),
        ("concurrency,p50_tpot_ms,p99_tpot_ms,p50_ttft_ms", "4,10,20,30", (4, 0.01, 0.03, 0)),
        ("concurrency,p99_tpot_ms,Average time per output token (sec)", "4,20,0.01", (4, 0.01, 0, 0)),
        ("concurrency,median tpot ms,mean tpot us,tpot_ms", "4,30,10000,20", (4, 0.01, 0, 0)),
        ("concurrency,Output Token Throughput Per User (tokens/sec/user)", "4,100", (4, 0.01, 0, 0)),
        ("concurrency,tps/user,tps", "4,100,7", (4, 0.01, 0, 0)),  # tps alone may be of requests
        ("concurrency,end-to-end latency (s),OSL,TTFT (s)", "4,1.03,101,0.03", (4, 0.01, 0.03, 0)),
        ("request_rate,mean_tpot_ms,mean_ttft_ms,output_tokens", "3,10,10,101", (4, 0.01, 0.01, 0)),
        ("request_rate,max_concurrency,mean_tpot_ms,mean_ttft_ms,osl", "3,64,10,10,101", (4, 0.01, 0.01, 0)),
    ],
)
def test_names_of_other_engines_are_read(
    header: str, row: str, read: tuple[float, float, float, float], tmp_path: Path
) -> None:
    """With the line that is offered: genai-perf, trtllm-bench, LLMPerf; a mean before a median; an open loop."""
    path = tmp_path / "sweep.csv"
    path.write_text(f"{header}\n{row}\n")
    (one,) = followed(path).measured

    assert pytest.approx(read, rel=1e-6) == (one.requests, one.step_seconds, one.ttft or 0, one.throughput or 0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("concurrency,p99_tpot_ms", "4,20"), "line 2: TPOT is unknown"),
        (("concurrency,tpot", "4,1.5"), "line 2: TPOT is 1.5 s; possible are 0.05 ms to 0.5 s"),
        (("concurrency,tpot_ms", "4,0.02"), "line 2: TPOT is 2e-05 s; possible are 0.05 ms to 3 s"),
        (("concurrency,step_ms", "4,9000"), "line 2: TPOT is 9 s; possible are 0.05 ms to 3 s"),
        (("concurrency,output_tok_s", "1,0", "4,100"), "line 2: throughput is 0, but must be above 0"),
        (("concurrency,tpot_ms,tokens", "1,10,0"), "line 2: tokens is 0, but must be above 0"),
        (("request_rate,concurrency,tpot_ms", "0,4,10"), "line 2: rate is 0, but must be above 0"),
        (("concurrency,throughput", "1,100", "4,300"), "If so, give --column throughput=throughput"),
        (
            ("concurrency,k,output_tok_s,acceptance_length", "1,0,100,", "8,0,80,", "1,2,200,2", "8,2,150,2"),
            "it is the throughput of each request; give --column each_throughput=output_tok_s",
        ),
        (
            ("request_rate,max_concurrency,mean_tpot_ms", "3,64,10"),
            "line 2: with a request rate, max_concurrency may be a limit that was not reached",
        ),
        (
            ("request_rate,tpot_p50_ms,ttft_p50_ms,tokens", "3,10,10,100"),  # medians say nothing of the mean number
            "line 2: the number of concurrent requests is unknown",
        ),
    ],
)
def test_a_wrong_unit_or_kind_is_refused(lines: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Each was read as something else, without a word."""
    with pytest.raises(UsageError, match=re.escape(message)):
        read_table(tmp_path, *lines)


def test_a_named_column_is_believed(tmp_path: Path) -> None:
    """The remedies of the messages work."""
    path = tmp_path / "sweep.csv"
    path.write_text("request_rate,users,throughput,speed\n3,4,400,100\n3,16,1600,100\n")
    for columns in (
        {"running": "users", "throughput": "throughput"},
        {"running": "users", "each_throughput": "speed"},
    ):
        assert [0.01, 0.01] == pytest.approx([one.step_seconds for one in read_measurements(path, columns).measured])


def test_a_throughput_that_falls_between_some_loads_is_of_all(tmp_path: Path) -> None:
    """A server may lose throughput at its heaviest load: here from 8 to 16 requests, or from 1 to 2."""
    assert 3 == len(read_table(tmp_path, "concurrency,output_tok_s", "1,100", "8,400", "16,390").measured)
    assert 2 == len(read_table(tmp_path, "concurrency,output_tok_s", "1,100", "2,90").measured)


def test_what_was_not_used_is_said(tmp_path: Path) -> None:
    """A throughput of each request beside TPOT, and rows without a draft length."""
    rows = ("1,0,100,10,", "16,,90,11,", "1,2,200,5,2", "16,2,180,5.5,2")
    notes = read_table(tmp_path, "concurrency,k,output_tok_s,tpot_ms,acceptance_length", *rows).notes

    assert "no draft length, so plain decoding (1 of 4 rows)" in notes
    assert "output_tok_s is not tokens per second of all requests, by the other columns, so it was not used" in notes
    clean = read_table(tmp_path, "concurrency,output_tok_s,tpot_ms", "1,100,10", "16,1400,11").notes
    assert not any("not used" in note or "no draft length" in note for note in clean)


def test_a_column_of_tokens_is_no_secret() -> None:
    """ "Inter Token [hidden] (ms)" was in the message that lists the columns."""
    assert "Inter Token Latency (ms)" == without_secrets("Inter Token Latency (ms)")
    assert "Token [hidden]" == without_secrets("Token LATENCYx")

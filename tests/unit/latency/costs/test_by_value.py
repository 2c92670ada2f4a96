"""Tables whose columns have names that nobody else uses: the line that reads them is offered, where one only fits."""

import json
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Table, read_measurements
from pipeline.latency.costs.step_costs import is_profile
from tests.unit.latency.costs.offers import line, offered
from tests.unit.latency.sweeps import RESULT, write_results, write_table

SWEEPS = next((one for up in Path(__file__).parents if (one := up / "shared/data/measurements").is_dir()), Path("none"))
NO_ANSWER = {"draftbench_m4max.csv", "specbundle_sglang.csv", "qwen397_awq_ctx16k.csv"}  # see docs/latency.md


def _followed(path: Path) -> tuple[dict[str, str], Table]:
    """The offered columns, and the table that is read with them."""
    columns = offered(path)
    return columns, read_measurements(path, columns)


@pytest.mark.parametrize(
    "name", ["aggregate_tps", "agg tok/s", "throughput (out tok/s)", "Aggregate tokens per second"]
)
def test_a_throughput_with_another_name_is_offered(name: str, tmp_path: Path) -> None:
    """It rises with the load, and the time per token that follows is possible. The first token's time is another one."""
    path = write_table(tmp_path, f"concurrency,{name},FTL(s)", "1,100,0.02", "8,640,0.05", "32,1600,0.2")
    columns, table = _followed(path)

    assert {"throughput": name, "ttft": "FTL(s)"} == columns
    assert [0.010, 0.0125, 0.020] == pytest.approx([one.step_seconds for one in table.measured])


def test_a_time_per_token_with_another_name_is_offered(tmp_path: Path) -> None:
    """With the unit that its name has."""
    columns, table = _followed(write_table(tmp_path, "batch_size,token_time_ms", "1,45", "8,46", "64,62"))

    assert {"running": "batch_size", "tpot": "token_time_ms"} == columns
    assert [0.045, 0.046, 0.062] == pytest.approx([one.step_seconds for one in table.measured])


def test_littles_law_finds_the_columns_of_a_table_without_one_known_name(tmp_path: Path) -> None:
    """Throughput times time per token is the number of users; runs and cards are no such number."""
    rows = ("1,1,8,98,10.1", "2,8,8,630,12.5", "3,32,8,1590,20")
    columns, table = _followed(write_table(tmp_path, "run,users,cards,gen_tps,delay_ms", *rows))

    assert {"concurrency": "users", "throughput": "gen_tps", "tpot": "delay_ms"} == columns
    assert [1, 8, 32] == [one.requests for one in table.measured]


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("concurrency,a_tps,b_tps", ("1,100,101", "8,640,650", "32,1600,1700")),  # two that fit
        ("concurrency,tps_per_gpu", ("1,100", "8,80", "32,50")),  # of all, on a server that slows down
        ("concurrency,gain", ("1,1", "8,6", "32,20")),  # neither a rate nor a time
        ("concurrency,total_ms", ("1,5000", "8,6000", "32,9000")),  # too long for a token
        ("concurrency,first_token_ms", ("1,50", "8,60", "32,90")),
        ("concurrency,decode_step_ms", ("1,50", "8,60", "32,90")),  # a step may give several tokens
        ("n,gen_tps", ("1,100", "8,640")),  # nothing tells that these are requests
        ("n,gen_tps,delay_ms", ("1,100,10", "8,100,90", "32,100,20")),  # does not fit
    ],
)
def test_nothing_is_offered_where_none_fits_or_several(header: str, rows: tuple[str, ...], tmp_path: Path) -> None:
    """The message is as before."""
    path = write_table(tmp_path, header, *rows)

    assert {} == offered(path)


def test_a_table_that_is_read_has_no_offer(tmp_path: Path) -> None:
    """Other columns may fit as well."""
    path = write_table(tmp_path, "concurrency,tpot_ms,aggregate_tps", "1,10,100", "8,12.5,640")

    assert [0.010, 0.0125] == pytest.approx([one.step_seconds for one in read_measurements(path).measured])


DROPPED = {  # names that were read until the tables of synonyms went, with the quantity
    "num_requests_running": "running", "mean_batch_size": "running", "batch_size": "running", "batch": "running",
    "request_concurrency": "concurrency", "concurrent_requests": "concurrency", "num_concurrent_requests": "concurrency",
    "speculative_tokens": "gamma", "num_spec_tokens": "gamma", "spec_tokens": "gamma", "draft_length": "gamma",
    "draft_len": "gamma",
    "accept_len": "acceptance_length", "acceptance_len": "acceptance_length", "spec_accept_length": "acceptance_length",
    "tokens_per_target_call": "acceptance_length", "tokens_per_step": "acceptance_length", "omega": "acceptance_length",
    "time_per_output_token_ms": "tpot", "inter_token_latency_ms": "tpot", "time_to_first_token_ms": "ttft",
    "request_latency_ms": "latency", "end_to_end_latency_ms": "latency",
    "output_token_throughput": "throughput", "output_token_throughput_tok_s": "throughput",
    "output_throughput_tokens_s": "throughput", "output_token_throughput_per_sec": "throughput",
    "total_output_throughput_tokens_sec": "throughput", "total_token_output_throughput_tokens_sec": "throughput",
    "output_tokens_per_second": "throughput", "throughput_tok_s": "throughput", "tokens_per_second": "throughput",
    "tokens_per_second_per_user": "each_throughput", "output_token_throughput_per_user": "each_throughput",
    "per_user_output_speed_tps_user": "each_throughput", "tok_s_user": "each_throughput", "tps_user": "each_throughput",
    "mean_output_tokens": "tokens", "output_len": "tokens", "output_sequence_length": "tokens", "osl": "tokens",
}  # fmt: skip


@pytest.mark.parametrize(("name", "quantity"), DROPPED.items())
def test_a_name_that_was_read_is_offered_as_the_same(name: str, quantity: str, tmp_path: Path) -> None:
    """In a table whose other columns have known names; in the message if the table needs it, and else in a note."""
    known = {
        "concurrency": (1, 8, 32, 1, 8, 32),
        "k": (0, 0, 0, 2, 2, 2),
        "tpot_ms": (10, 12, 20, 6, 8, 18),
        "acceptance_length": ("", "", "", 2.1, 2.0, 2.0),
        "output_tok_s": (98, 630, 1590, 160, 950, 1700),
        "ttft_ms": (20, 30, 60, 21, 33, 70),
        "tokens": (201, 202, 200, 203, 200, 204),
        "latency_ms": (2000, 2430, 4040, 1220, 1630, 3660),
        "each_tok_s": (100, 83, 50, 166, 125, 55),
    }
    same = {
        "running": "concurrency", "concurrency": "concurrency", "gamma": "k", "tpot": "tpot_ms", "ttft": "ttft_ms",
        "latency": "latency_ms", "throughput": "output_tok_s", "each_throughput": "each_tok_s",
    }.get(quantity, quantity)  # fmt: skip
    times = {"tpot_ms", "output_tok_s", "latency_ms", "each_tok_s"}
    kept = [one for one in known if one != same and (one not in times or (same not in times and one == "tpot_ms"))]
    header = [*kept, name]
    rows = [",".join(str(known[one if one != name else same][place]) for one in header) for place in range(6)]
    path = write_table(tmp_path, ",".join(header), *rows)
    found = offered(path) or line(" ".join(read_measurements(path).notes))

    assert {quantity: name} == found
    assert read_measurements(path, found).measured


def test_the_tables_of_others_are_read_with_the_line_that_is_offered() -> None:
    """Every public sweep beside the checkout that was read before the names went, and what its line says."""
    if not SWEEPS.is_dir():
        pytest.skip("no shared data beside this checkout")
    lines = {path.name: offered(path) for path in sorted(SWEEPS.rglob("*.csv"))}
    for path in SWEEPS.rglob("*.csv"):
        if path.name not in NO_ANSWER:
            assert read_measurements(path, lines[path.name]).measured

    assert {"running": "batch"} == lines["batch16.csv"]
    assert "chunk_inter_token_latency_avg_ms" == lines["glm51_dcp4.csv"]["itl"]


@pytest.mark.parametrize(
    ("header", "rows", "columns"),
    [
        (
            "n_users,output_tok_s,decode_avg",
            ("1,98,10.1", "8,630,12.5", "32,1590,20"),
            {"concurrency": "n_users", "tpot": "decode_avg*0.001"},
        ),
        ("concurrency,k,decode_time", ("1,0,12", "8,0,14", "32,0,25"), {}),  # seconds or milliseconds: nothing tells
        ("concurrency,tpot_ms,tps_per_gpu", ("1,10,12.4", "8,12.5,80", "32,20,199"), {"throughput": "tps_per_gpu*8"}),
        (
            "concurrency,tpot_ms,total_token_throughput",
            ("1,10,100", "8,12.5,640", "32,20,1600"),
            {},
        ),  # with the prompts
    ],
    ids=["milliseconds", "no unit", "of a GPU", "prompts too"],
)
def test_units_are_offered_as_factors(
    header: str, rows: tuple[str, ...], columns: dict[str, str], tmp_path: Path
) -> None:
    """Where Little's law tells them: the line has `NAME*FACTOR`, and the report says it."""
    path = write_table(tmp_path, header, *rows)
    table = read_measurements(path, columns) if columns or "tpot_ms" in header else None
    if table is None:
        assert {} == offered(path)
        return

    found = line(" ".join(table.notes)) if not columns else line(_said(path))
    assert columns == found
    assert [0.010, 0.0125, 0.020] == pytest.approx([one.step_seconds for one in table.measured], rel=0.02)
    for name, column in columns.items():
        assert f"{column.replace('*', ' * ')} as {name}" in table.notes[0]


def _said(path: Path) -> str:
    """The refusal or the notes of a table that is read as it is."""
    try:
        return " ".join(read_measurements(path).notes)
    except UsageError as error:
        return str(error)


def test_a_time_between_chunks_is_offered_where_the_acceptance_is_unknown(tmp_path: Path) -> None:
    """It is that of a token without a draft and of several with one; the number of running requests as well."""
    header = "k,concurrency,tpot_ms,chunk_ms,other_ms,avg_running"
    path = write_table(tmp_path, header, "0,1,20,20,31,1", "0,8,30,30.1,40,7.9", "3,1,10,24,15,1", "3,8,16,39,19,7.5")
    note = " ".join(read_measurements(path).notes)
    table = read_measurements(path, line(note.partition("the acceptance is unknown")[0]))

    assert [1, 1, pytest.approx(2.4), pytest.approx(39 / 16)] == [one.tokens_per_step for one in table.measured]
    assert [1, 7.9, 1, 7.5] == [one.requests for one in table.measured]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("concurrency,tpot_ms,accepted_share", "1,10,0.7", "'accepted_share' is about drafts, but the draft length is unknown"),
        ("concurrency,tpot_ms,spec_len,num_spec", "1,10,3,4", "the draft length is in no column with a known name, and can be"),
        ("request_rate,mean_tpot_ms,osl,ttft_ms", "2,10,100,30", "the output length is in no column"),
        ("request_rate,latency,tpot_ms,ttft_ms,tokens,req_per_s", "2,1.02,10,30,100,1.2", "requests served per second"),
        ("concurrency,k,tpot_ms,acceptance_length", "1,3,10,1.0", "no draft token was accepted: if it is a row without a draft"),
    ],
)  # fmt: skip
def test_what_an_unread_column_would_change_is_refused(header: str, row: str, message: str, tmp_path: Path) -> None:
    """Drafts were plain decoding, an overloaded server kept up, and rows without a draft were a draft that is never right."""
    assert message in _said(write_table(tmp_path, header, row))


def test_results_after_each_other_are_lines_or_not(tmp_path: Path) -> None:
    """`cat *.json` of pretty files, JSON lines, a list; arrivals by the times of a log are a rate that is served."""
    run = {"completed": 100, "total_output_tokens": 20_000, "duration": 50.0,
           "request_throughput": 2.0, "mean_tpot_ms": 10.0, "mean_ttft_ms": 30.0, "request_rate": "trace",
           "max_concurrency": 32, "concurrency": 4.0, "accept_length": None}  # fmt: skip
    texts = ("\n".join(json.dumps(run, indent=2) for _ in range(2)), f"{json.dumps(run)}\n" * 2, json.dumps([run, run]))
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        measured = read_measurements(path).measured

        assert [pytest.approx(1 + 2.0 * 1.99)] * 2 == [one.requests for one in measured]
        assert not is_profile(path)  # as the command asks first


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("method,concurrency,tpot_ms", ("none,1,10", "eagle3,1,5"), "'method' is about drafts"),
        ("method,concurrency,tpot_ms", ("eagle3 0.5B,1,10", "eagle3 0.5B,8,12"), "'method' is about drafts"),
        ("mode,concurrency,tpot_ms", ("spec temp=0,1,10", "spec temp=0,8,12"), "'mode' is about drafts"),
        ("mode,concurrency,tpot_ms", ("mtp 0,1,10", "draft=0,8,12"), ""),
        ("mtp,concurrency,tpot_ms", ("on,1,10", "on,8,12"), "'mtp' is about drafts"),
        ("Draft model,concurrency,tpot_ms", ("Qwen3-0.6B,1,10", "Qwen3-0.6B,8,12"), "'Draft model' is about drafts"),
        ("Draft model,concurrency,tpot_ms", ("none,1,10", "-,8,12"), ""),
        ("speculative decoding,concurrency,tpot_ms", ("False,1,10", "disabled,8,12"), ""),
        ("machine spec,concurrency,tpot_ms", ("8xH100,1,10", "8xH100,8,12"), ""),
        ("concurrency,k,tpot_ms,acceptance", ("1,0,10,-", "1,3,5,51%"), "give --column draft_acceptance_rate=acceptance"),
        ("concurrency,k,Mean ITL (ms)", ("1,0,10", "1,3,5"), "if 'Mean ITL (ms)' is a time per token, --column tpot=NAME"),
        ("concurrency,k,tpot_ms,output_tok_s", ("1,0,10,95", "4,0,11,360", "16,0,12,1.210"), "separator of thousands"),
        ("concurrency,k,tpot_ms,ttft_ms,output_tok_s", ("1,0,10,900,50", "2,0,10,1200,135", "16,0,10,20000,130"), "full"),
        ("mode,concurrency,tpot_ms", ("no spec,1,10", "without draft,8,12"), ""),
        ("benchmark,concurrency,tpot_ms", ("spec_bench,1,10", "SPEED-Bench,8,12"), ""),
        ("concurrency,tpot_ms,success,failed", ("1,10,10,0", "64,18,20,620"), "line 3: 620 of 640 requests failed"),
        ("concurrency,tpot_ms,num_errors,completed", ("1,10,0,40", "8,12,1,40"), ""),
        ("concurrency,tpot_ms,failed_requests,completed", ("1,10,9,40", "8,12,0,40"), "by 'failed_requests' and 'completed'"),
        ("concurrency,top_k,tpot_ms,ttft_ms", ("1,20,10,20", "8,20,12,30"), ""),
        ("concurrency,steps,tpot_ms,ttft_ms", ("1,20,10,20", "8,20,12,30"), ""),
        ("concurrency,warmup steps,tpot_ms", ("1,5,10", "8,6,12"), ""),
        ("concurrency,mtp layers,tpot_ms", ("1,1,10", "8,1,12"), ""),
        ("concurrency,steps,tpot_ms", ("1,0,10", "8,3,12"), "FILE:gamma=0"),
        ("concurrency,steps,tpot_ms,acceptance_length", ("1,3,10,2", "8,3,12,2"), "gamma=steps"),
        ("request_rate,k,tpot_ms,ttft_ms,e2el_ms,avg running requests", ("2,0,8,60,570,1.1", "8,0,9,70,640,4.9"), ""),
        ("request_rate,k,tpot_ms,ttft_ms,e2el_ms,num requests", ("20,0,8,60,570,20", "40,0,9,70,640,20"), ""),
        ("request_rate,k,tpot_ms,ttft_ms,e2el_ms,goodput (req/s)", ("2,0,8,60,570,1", "8,0,9,70,640,5"), ""),
        ("rate,k,tpot_ms,ttft_ms,e2el_ms,req/s", ("2,0,8,60,570,1.98", "8,0,9,70,640,7.9"), "served_rate=req/s"),
        ("rate,k,tpot_ms,ttft_ms,e2el_ms,req/s", ("2,0,8,60,570,1.98", "8,0,9,70,640,4"), "served per second is in no"),
        ("batch size,k,iteration time (ms)", ("1,0,8", "8,0,9"), "can be a time of a step or of a token"),
        ("batch size,k,step latency (ms)", ("1,0,8", "8,0,9"), "can be a time of a step or of a token"),
        ("concurrency,k,avg latency,osl", ("1,0,2143.2,256", "8,0,2446,256"), "'latency=avg latency*0.001'"),
        ("batch size,k,decode latency (ms)", ("1,0,8", "8,0,9"), "can be a time of a step or of a token"),
        ("users,k,Inter Token Latency (ms)", ("1,0,8", "8,0,9", "1,3,10", "8,3,11"), "(itl=NAME if between chunks)"),
        ("concurrency,k,tok per joule,tpot_slo_ms", ("1,0,0.5,50", "8,0,0.6,50"), "TPOT is unknown"),
        ("concurrency,k,scheduler time (ms)", ("1,0,0.5", "8,0,0.6"), "TPOT is unknown"),
        ("concurrency,k,network rtt ms,e2e latency (ms)", ("1,0,2,900", "8,0,2,950"), "TPOT is unknown"),
        ("concurrency,k,Input Sequence Length (tokens),Request Latency (ms)", ("1,0,9,900", "8,0,9,950"), "TPOT is unknown"),
        ("concurrency,k,context_tokens,E2E ms", ("1,0,1000,900", "8,0,1000,950"), "TPOT is unknown"),
        ("concurrency,tpot_ms,time to first token", ("1,8,0.065", "8,9,7.1"), "'ttft=time to first token'"),
        ("concurrency,tpot_ms,time to first token", ("1,8,65", "8,9,7100"), "'ttft=time to first token*0.001'"),
        ("concurrency,k,output throughput / H100", ("1,0,15", "8,0,90"), "'throughput=output throughput / H100*N', with N"),
        ("users,k,throughput per accelerator (tok/s)", ("1,0,15", "8,0,90"), "(tok/s)*N', with N the number of devices"),
        ("tensor_parallel,k,tpot_ms", ("1,0,15", "8,0,16"), "requests is unknown"),
        ("concurrency,tpot_ms,slo_failed,completed", ("1,10,30,40", "8,12,30,40"), ""),
        ("concurrency,tpot_ms,error_code,completed", ("1,10,404,40", "8,12,404,40"), ""),
        ("concurrency,tpot_ms,tpot_error_us,completed", ("1,10,60,40", "8,12,60,40"), ""),
        ("concurrency,tpot_ms,failed_drafts,ok", ("1,10,980,1", "8,12,980,1"), ""),
        ("# ===== Benchmark of 8B =====\nconcurrency,tpot_ms", ("1,10", "8,12"), ""),
        ("concurrency,tpot_ms,notes", ("1,10,", "8,12,=== SPEC benchmark"), ""),
        ("concurrency,tpot_ms,ttft (\u00b5s)", ("1,10,20000", "8,12,30000"), "as ttft (us)"),
        ("concurrency,tpot_ms,ttft (\u03bcs)", ("1,10,20000", "8,12,30000"), "as ttft (us)"),
        ("concurrency,tpot_ms,ttft_ms", ("1,10,4000", "1,10,30", "8,12,60"), "line 2: TTFT of one request is 4e+03 ms"),
        ("concurrency,tps_per_gpu", ("1,12.4", "8,80"), "can be 'tps_per_gpu*N'"),
        ("PP,B,S_TG t/s,S t/s", ("128,1,49.2,94.8", "128,8,269.5,476"), "can be 'S_TG t/s' or 'S t/s'"),
        ("k,concurrency,tpot_ms,acceptance_length", ("0,1,10,nan", "0,8,12,NaN"), ""),
        ("concurrency,k,tps", ("1,0,100", "8,0,80", "32,0,50"), "give --column each_throughput=tps"),
        ("concurrency,k,tok/s", ("32,0,2351", "32,1,3596"), "--column throughput=tok/s if it is of all requests, --column each"),
        ("concurrency,k,tok/s", ("256,0,5256", "512,0,5512"), "--column each_throughput=tok/s if it is of each"),
        ("concurrency,k,tok/s/user", ("32,0,73", "32,1,112"), "If so, give --column each_throughput=tok/s/user"),
        ("concurrency,k,tokens/min", ("1,0,6000", "8,0,38400"), "'throughput=tokens/min*0.0166667'"),
        ("concurrency,k,out ktok/s", ("1,0,0.1", "8,0,0.64"), "'throughput=out ktok/s*1000'"),
        ("concurrency,tpot_ms,min latency (ms)", ("1,10,900", "8,12,950"), ""),
        ("concurrency,tpot_ms,generated tokens", ("1,10,2560", "8,12,20480"), ""),  # of all requests
        ("concurrency,latency_ms,generated tokens", ("1,2143,2560", "8,2446,20480"), "TPOT is unknown"),
        ("concurrency,k,tpot_ms,acceptance_rate", ("1,0,10,", "1,3,5,51.1"), "draft_acceptance_rate=acceptance_rate*0.01"),
        ("concurrency,k,tpot_ms,accept_len,tau", ("1,0,10,,", "1,3,5,2.5,2.5"), "give --column acceptance_length=accept_len"),
        ("concurrency,k,tpot_ms,accept_len,tau", ("1,0,10,1,1", "1,3,5,2.5,2.7"), "can be 'accept_len' or 'tau'; choose"),
        ("concurrency,num_draft_tokens,tpot_ms,accept_len", ("1,0,10,1", "1,3,5,2.5"), "gamma=num_draft_tokens"),
        ("concurrency,Draft Tokens,tpot_ms,acceptance_length", ("1,0,10,1", "1,3,5,2.5"), "'gamma=Draft Tokens'"),
        ("concurrency,steps,num_draft_tokens,tpot_ms,accept_len", ("1,3,4,10,2", "8,3,4,12,2"), "gamma=steps"),
        ("concurrency,speculative_num_draft_tokens,tpot_ms,acceptance_length", ("1,4,10,2", "8,4,12,2"), "add a column `k`"),
        ("batch size,baseline (tok/s),eagle3 (tok/s),speedup", ("1,122,245,2", "8,870,1740,2"), "draft in one row; write a row"),
        ("concurrency,no_spec_tpot_ms,mtp3_tpot_ms", ("1,8,4", "8,9,5"), "with and without a draft in one row; write"),
        ("concurrency,k,tpot_ms,pos0_acceptance,pos1_acceptance", ("1,0,8,,", "1,2,4,0.7,0.5"), "pos1_acceptance the accept"),
        ("concurrency,total draft tokens,tpot_ms,acceptance_length", ("1,4000,10,2", "8,39000,12,2"), "add a column `k`"),
    ],
)  # fmt: skip
def test_what_planners_tables_say_of_themselves(
    header: str, rows: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """Texts that tell of drafts, failed requests, a server's first request, one GPU of several, two throughputs, blanks of
    pandas."""
    said = _said(write_table(tmp_path, header, *rows))

    assert message in said
    assert message or (said.startswith("read ") and "--column" not in said)


@pytest.mark.parametrize(
    ("latency", "tokens"),
    [
        ("Request Latency (ms)", "Output Sequence Length (tokens)"),
        ("latency_ms", "mean_output_tokens"),
        ("avg latency ms", "OSL"),
        ("E2EL (ms)", "output length"),
        ("e2e_latency_ms", "output_len"),
    ],
)
@pytest.mark.parametrize("first", ["", "Time To First Token (ms)"])
def test_a_latency_with_the_output_length_is_the_time_per_token(
    latency: str, tokens: str, first: str, tmp_path: Path
) -> None:
    """As AIPerf writes them; tokens are no milliseconds."""
    rows = ("1,0,2143.2,256", "8,0,2446,256", "1,3,1069.7,256")
    path = write_table(
        tmp_path,
        f"concurrency,k,{latency},{tokens}" + (first and f",{first},ISL"),
        *(one + (first and ",65,1000") for one in rows),
    )
    columns, table = _followed(path)

    assert {"tokens": tokens} == {name: one for name, one in columns.items() if name not in ("latency", "ttft")}
    assert pytest.approx((2143.2 - (65 if first else 0)) / 255 / 1000, rel=1e-3) == table.measured[0].step_seconds


def test_what_a_benchmark_prints_is_not_its_file(tmp_path: Path) -> None:
    """It was a table of one column."""
    path = tmp_path / "stdout.txt"
    path.write_text("============ Serving Benchmark Result ============\nMean TPOT (ms):     21.80\n")

    assert "give the JSON it saves" in _said(path)


def test_a_draft_length_that_changed_during_a_test_is_none(tmp_path: Path) -> None:
    """26 draft tokens in 10 drafts were read as a draft length of 3."""
    counts = {"num_drafts": 8700, "draft_tokens": 22_620, "acceptance_length": 2.3}
    counted = {f"spec_decode_{name}": one for name, one in counts.items()}
    path = write_results(
        tmp_path, RESULT | {"total_output_tokens": 20_000, "mean_tpot_ms": 7.0, "mean_itl_ms": 15.0} | counted
    )

    assert "2.3 tokens per step, but the draft length is unknown" in _said(path)
    assert 3 == read_measurements(path, values={"gamma": 3}).measured[0].gamma

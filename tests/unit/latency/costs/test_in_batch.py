"""Whether requests waited for a place, and the mean time per token where a table has a median."""

from pathlib import Path

import pytest

from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import Table, read_measurements

# Nobody waited: TTFT is 2 to 4% of the latency. The medians of 64 requests with drafts are 0.68 of concurrency / throughput.
MEDIANS = """concurrency,k,tpot_p50_ms,output_tok_s,acceptance_length,ttft_ms
1,0,5.8,172.4,,31
8,0,6.4,1225,,38
32,0,8.0,3800,,62
64,0,11.0,5500,,94
1,4,1.95,512.8,4.0,31
8,4,2.5,2900,4.0,38
32,4,5.0,5600,4.0,62
64,4,7.0,6200,4.0,94
"""


def _read(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    return read_measurements(path)


def test_a_short_ttft_is_no_full_server(tmp_path: Path) -> None:
    """The step is concurrency / throughput; "the server was full" was said of 43 of 64 requests, with costs 7% off."""
    table = _read(tmp_path, MEDIANS)

    assert 64 == table.measured[-1].requests
    assert [pytest.approx(64 / 6200 * 4), pytest.approx(64 / 5500)] == [
        table.measured[place].step_seconds for place in (-1, 3)
    ]
    assert not any("full" in note for note in table.notes)
    assert "the step was taken from concurrency and throughput, because the time per token is a median" in table.notes
    assert fit_measurements(table.measured).leave_one_out.chosen < 0.05


@pytest.mark.parametrize(
    ("ttft", "tokens", "said"),
    [
        ("ttft_ms", 128, "TTFT is too short for requests that waited: fewer requests ran"),  # 1% of the latency
        (None, None, "the server was full and the other requests waited, or too few requests were sent"),
    ],
)
def test_a_small_batch_has_the_reason_that_is_known(
    ttft: str | None, tokens: int | None, said: str, tmp_path: Path
) -> None:
    """Mean times: 16 of 32 requests decode. Their number is the batch in either case."""
    rows = ["concurrency,k,tpot_ms,output_tok_s,ttft_ms,tokens", f"1,0,10,100,{12 if ttft else ''},{tokens or ''}"]
    rows.append(f"32,0,20,800,{30 if ttft else ''},{tokens or ''}")
    table = _read(tmp_path, "\n".join(rows) + "\n")

    assert pytest.approx(16) == table.measured[1].requests
    assert any(said in note for note in table.notes)


@pytest.mark.parametrize("column", ["tpot_ms", "tpot_p50_ms"])
@pytest.mark.parametrize("tokens", ["", "128"])
def test_a_long_ttft_is_a_full_server(column: str, tokens: str, tmp_path: Path) -> None:
    """32 of 48 decode, 127 tokens of 20 ms; the others wait 1.27 s. With a median too, and with unknown output lengths."""
    rows = [f"concurrency,k,{column},output_tok_s,ttft_ms,tokens", f"1,0,10,100,10,{tokens}"]
    rows.append(f"48,0,20,1600,1270,{tokens}")
    table = _read(tmp_path, "\n".join(rows) + "\n")

    assert pytest.approx(32, rel=0.02) == table.measured[1].requests
    assert pytest.approx(0.020, rel=0.02) == table.measured[1].step_seconds
    assert any("TTFT is long, so the server was full" in note for note in table.notes)


def test_a_median_keeps_its_step_where_the_throughput_is_of_one_request(tmp_path: Path) -> None:
    """32 requests of 50 tokens/s each: concurrency / throughput would be 640 ms."""
    table = _read(tmp_path, "concurrency,k,tpot_p50_ms,output_tok_s\n1,0,10,100\n8,0,12,83\n32,0,20,50\n")

    assert [0.010, 0.012, 0.020] == pytest.approx([one.step_seconds for one in table.measured])
    assert not any("was taken from" in note for note in table.notes)


def test_prefills_are_no_part_of_a_mean_from_throughput(tmp_path: Path) -> None:
    """Outputs of 16 tokens at 10 ms and a TTFT of 150 ms: half of the concurrency / throughput of 18.75 ms."""
    rows = [
        "concurrency,k,tpot_p50_ms,output_tok_s,ttft_ms,tokens",
        *(f"{n},0,9,{n * 16 / 0.3},150,16" for n in (1, 4)),
    ]
    table = _read(tmp_path, "\n".join(rows) + "\n")

    assert [0.010, 0.010] == pytest.approx([one.step_seconds for one in table.measured])


LOADS = (1, 4, 16, 32, 64)


def _closed_loop(cap: float, prefill: float, tokens: int = 200) -> str:
    """Means of a server that runs at most `cap` of the requests; a request has its prefill at any load, seconds."""
    rows = ["concurrency,k,mean_tpot_ms,output_tok_s,mean_ttft_ms,tokens,acceptance_length"]
    for gamma, length in ((0, 1.0), (4, 3.0)):
        for load in LOADS:
            running = min(load, cap)
            tpot = (0.006 + 0.00008 * running) * (1 + 0.1 * gamma) / length
            stay = prefill + tpot * (tokens - 1)
            latency = stay * load / running
            rate = load / latency
            rows.append(
                f"{load},{gamma},{1e3 * tpot},{rate * tokens},{1e3 * (latency - tpot * (tokens - 1))},{tokens},{length}"
            )
    return "\n".join(rows) + "\n"


def test_a_server_that_is_full_for_a_quarter_is_full(tmp_path: Path) -> None:
    """48 of 64 run, and TTFT is a quarter of the latency: 64 were taken for the batch, and the capacity was 26% too high."""
    table = _read(tmp_path, _closed_loop(48, 0.001))

    assert [*LOADS[:-1], 48] * 2 == pytest.approx([one.requests for one in table.measured], rel=0.01)
    assert any("TTFT is as much longer, so the other requests waited" in note for note in table.notes)
    assert any("(2 of 10 rows)" in note for note in table.notes if "as much longer" in note)


@pytest.mark.parametrize("median", [False, True])
def test_a_fifth_that_is_not_explained_stays(median: bool, tmp_path: Path) -> None:
    """80% decode: with a short TTFT a ramp can be the reason, and a median is not exact enough."""
    text = _closed_loop(51, 0.001) if median else "concurrency,k,mean_tpot_ms,output_tok_s,mean_ttft_ms,tokens\n"
    text = text.replace("mean", "median") if median else text + "1,0,10,100,10,100\n64,0,20,2560,30,100\n"

    assert 64 == _read(tmp_path, text).measured[-1].requests


def test_long_prefills_beside_a_fast_draft_are_no_full_server(tmp_path: Path) -> None:
    """46% of a plain request is prefill, and 65% of one with a draft: "the server was full" was said from 4 requests on."""
    table = _read(tmp_path, _closed_loop(64, 1.1))

    assert [*LOADS] * 2 == [one.requests for one in table.measured]
    assert not any("waited" in note for note in table.notes if "requests on" not in note)


def test_a_long_ttft_without_output_lengths_is_pointed_out(tmp_path: Path) -> None:
    """Without throughput and output lengths nothing was said of a TTFT that grew 20 times."""
    text = "\n".join(
        ",".join(row.split(",")[:3] + row.split(",")[4:5] + row.split(",")[6:])
        for row in _closed_loop(40, 0.03).splitlines()
    )
    (note,) = [one for one in _read(tmp_path, text + "\n").notes if "half of the decoding time" in one]

    assert note.startswith("from 64 requests on")


@pytest.mark.parametrize(
    ("ttft", "mean", "used"),
    [("30", 1.45, True), ("30", 1.9, True), ("30", 2.1, False), ("", 1.45, True), ("", 1.9, False)],
)
def test_how_far_a_mean_may_be_from_the_median(ttft: str, mean: float, used: bool, tmp_path: Path) -> None:
    """1.5 times; twice where a short TTFT shows that nobody waited. Beyond that the throughput is of something else."""
    rows = ["concurrency,k,tpot_p50_ms,output_tok_s,ttft_ms", f"1,0,10,100,{ttft}", f"64,0,20,{3200 / mean},{ttft}"]
    (note,) = [one for one in _read(tmp_path, "\n".join(rows) + "\n").notes if "is a median" in one] or [""]

    assert used == ("(1 of 2 rows)" not in note and bool(note))

"""Tests whose requests arrive at a rate, or all at once: the mean batch, by results as they are written and by tables."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.fit_measurements import fit_measurements
from pipeline.latency.costs.measurements import Table, read_measurements

TOKENS, STEP, EACH = 101.0, 0.02, 0.002  # output length; seconds of a step, and of each request in it


def _result(served: float, batch: float, **more: Any) -> dict[str, Any]:
    """A result of `vllm bench serve` without a latency: `batch` requests decode in the mean, 100 are sent."""
    token = STEP + EACH * batch
    return {
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 100 / served,
        "completed": 100,
        "total_output_tokens": 100 * TOKENS,
        "request_throughput": served,
        "output_throughput": served * TOKENS,
        "mean_ttft_ms": 40.0,
        "mean_tpot_ms": 1e3 * token * 1.3,  # short outputs, decoded in the fullest batches, count as much as long ones
        "mean_itl_ms": 1e3 * token,
        **more,
    }


def _at_rate(rate: float, *, cap: float = 40.0) -> dict[str, Any]:
    """Of a server that decodes at most `cap` at once: above its capacity the others wait for their first token."""
    capacity = cap / ((STEP + EACH * cap) * (TOKENS - 1))
    served = min(rate, capacity)
    batch = STEP * (TOKENS - 1) * served / (1 - EACH * (TOKENS - 1) * served) if rate < capacity else cap
    return _result(served, batch, request_rate=rate, mean_ttft_ms=40.0 if rate < capacity else 9e4)


def _written(place: Path, results: list[dict[str, Any]], kind: str) -> Path:
    path = place / f"tests.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(one) for one in results))
        return path
    with path.open("w") as file:
        table = csv.DictWriter(file, list(results[0]))
        table.writeheader()
        table.writerows(results)
    return path


def _read(place: Path, results: list[dict[str, Any]], kind: str = "jsonl") -> Table:
    return read_measurements(_written(place, results, kind))


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_an_overloaded_server_has_the_batch_that_it_ran(kind: str, tmp_path: Path) -> None:
    """602 of 100 requests were in the batch of an overloaded test, and the capacity was 2.3 times the largest served. Both kinds
    of file are read alike; the overload is said."""
    results = [_at_rate(rate) for rate in (0.5, 1, 2, 3, 4, 8, 20)]
    table = _read(tmp_path, results, kind)
    found = fit_measurements(table.measured)
    largest = max(one.requests for one in table.measured)

    assert all(1 <= one.requests <= 100 for one in table.measured)
    assert pytest.approx(40, rel=0.05) == largest
    served = max(one["output_throughput"] for one in results)
    assert pytest.approx(served, rel=0.05) == largest / float(found.step_seconds(largest, 0))
    (said,) = [note for note in table.notes if "left when arrivals ended" in note]
    assert said.endswith("(2 of 7 rows)")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("most", ["completed", "max_concurrent_requests", "max_concurrency"])
def test_a_batch_is_never_above_the_requests_of_its_test(kind: str, most: str, tmp_path: Path) -> None:
    """Times that contradict the totals: 1,000 would be in the batch."""
    result = _result(1.0, 500, request_rate=1.0) | ({} if most == "completed" else {most: 30})
    (one,) = _read(tmp_path, [result], kind).measured

    assert one.requests == (100 if most == "completed" else 30)


@pytest.mark.parametrize("rate", ["inf", float("inf")])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_burst_is_no_batch_of_all(rate: Any, kind: str, tmp_path: Path) -> None:
    """100 requests at once, of which 32 decode at a time; 8 that all fit have no prefills of others between their steps."""
    full = 32 / ((STEP + EACH * 32) * (TOKENS - 1))
    few = _result(8 / 3.7, 8, request_rate=rate, completed=8, duration=3.7, total_output_tokens=8 * TOKENS)
    table = _read(tmp_path, [few, _result(full, 32, request_rate=rate)], kind)

    assert [8, 32] == pytest.approx([one.requests for one in table.measured], rel=0.05)
    assert [1, 100 / 32] == pytest.approx([one.requests_per_place for one in table.measured], rel=0.05)
    assert any("all requests came at once" in note for note in table.notes)


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "served", "overload"),
    [(100, 0.7, 0.8, False), (100, 1.0, 0.7, True), (10_000, 1.0, 0.95, False), (10_000, 1.0, 0.9, True)],
)
def test_random_arrivals_may_end_late(
    arrivals: int, burstiness: float, served: float, overload: bool, tmp_path: Path
) -> None:
    """100 arrivals end a tenth of their time early or late; the limit was 5% for any number of them."""
    result = _result(served, 5, request_rate=1.0, burstiness=burstiness, completed=arrivals, duration=arrivals / served)
    notes = _read(tmp_path, [result | {"total_output_tokens": arrivals * TOKENS}], "csv").notes

    assert overload == any("left when arrivals ended" in note for note in notes)


def test_an_overloaded_latency_alone_is_refused(tmp_path: Path) -> None:
    """Without TTFT it holds the time in the queue."""
    path = tmp_path / "sweep.csv"
    path.write_text("rate,served_rate,latency,tokens\n9,5,30,100\n")
    with pytest.raises(UsageError, match="add columns of TTFT and of the time per token"):
        read_measurements(path)


@pytest.mark.parametrize("column", ["tpot_p50_ms", "output_tok_s"])
def test_a_table_with_totals_may_have_other_times(column: str, tmp_path: Path) -> None:
    """It was taken for a result whose answers were not streamed; one that says so itself is."""
    header = f"concurrency,completed,duration,total_output_tokens,{column}"
    path = tmp_path / "sweep.csv"
    path.write_text(f"{header}\n1,100,105,10100,{10 if 'tpot' in column else 100}\n")
    (one,) = read_measurements(path).measured
    assert pytest.approx(0.01, rel=0.06) == one.step_seconds
    path.write_text(f"{header},mean_tpot_ms\n1,100,105,10100,100,0\n")
    with pytest.raises(UsageError, match="were not streamed"):
        read_measurements(path)

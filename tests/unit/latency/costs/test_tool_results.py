"""The results that load-test tools write, re-made small after their own: AIPerf, GenAI-Perf, inference-perf, trtllm-bench."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import Measurement, read_measurements

TOKENS, TPOT, TTFT = 201.0, 0.010, 0.050
LATENCY = TTFT + (TOKENS - 1) * TPOT


def _stats(mean: float, unit: str = "ms") -> dict[str, Any]:
    return {"unit": unit, "avg": mean, "p50": 0.9 * mean, "p99": 2 * mean}


def _aiperf(load: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "schema_version": "1.1",
        "aiperf_version": "0.13.0",
        "request_throughput": {"unit": "requests/sec", "avg": 8 / LATENCY},
        "request_latency": _stats(1e3 * LATENCY),
        "request_count": {"unit": "requests", "avg": 400.0},
        "time_to_first_token": _stats(1e3 * TTFT),
        "inter_token_latency": _stats(1e3 * TPOT),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 8 * TOKENS / LATENCY},
        "output_sequence_length": _stats(TOKENS, "tokens"),
        "input_config": load,
    } | other


def _inference_perf(load: dict[str, Any], **successes: Any) -> dict[str, Any]:
    latency = {"request_latency": LATENCY, "time_per_output_token": TPOT, "time_to_first_token": TTFT}
    return {
        "load_summary": {"count": 400, "send_duration": 100.0, "requested_rate": 9.0, "achieved_rate": 4.0} | load,
        "successes": {
            "count": 400,
            "latency": {name: {"mean": mean, "median": 0.9 * mean} for name, mean in latency.items()},
            "throughput": {"output_tokens_per_sec": 3.9 * TOKENS, "requests_per_sec": 3.9},
            "output_len": {"mean": TOKENS},
        }
        | successes,
        "failures": {"count": 0, "request_latency": None},
    }


def _trtllm(**other: Any) -> dict[str, Any]:
    return {
        "engine": {"backend": "Pytorch"},
        "request_info": {"num_requests": 400, "avg_num_concurrent_requests": 8.0, "avg_output_length": TOKENS},
        "performance": {
            "avg_request_latency_ms": 1e3 * LATENCY,
            "request_throughput_req_s": 8 / LATENCY,
            "system_output_throughput_tok_s": 8 * TOKENS / LATENCY,
        },
        "streaming_metrics": {"avg_ttft_ms": 1e3 * TTFT, "avg_tpot_ms": 1e3 * TPOT},
    } | other


def _read(place: Path, found: Any, **values: float) -> list[Measurement]:
    path = place / "result.json"
    path.write_text(json.dumps(found))
    return read_measurements(path, values=values).measured


PHASES = [{"name": "warmup", "concurrency": 2}, {"name": "profiling", "type": "concurrency", "concurrency": 8}]


@pytest.mark.parametrize(
    "found",
    [
        _aiperf({"phases": PHASES, "loadgen": None}),
        _aiperf({"loadgen": {"concurrency": 8, "request_rate": None}}),
        _aiperf({"perf_analyzer": {"stimulus": {"concurrency": 8}}}),
        _aiperf({"concurrency": [8]}),
        _inference_perf({"concurrency": 8}),
        _trtllm(),
    ],
    ids=["aiperf", "aiperf before", "genai-perf", "genai-perf before", "inference-perf", "trtllm-bench"],
)
def test_a_closed_loop_is_read(found: dict[str, Any], tmp_path: Path) -> None:
    """With means of times, whatever the medians say; one result or several."""
    (one,) = _read(tmp_path, found)

    assert 8 == one.requests
    assert pytest.approx(TPOT) == one.step_seconds
    assert TOKENS == one.output_tokens
    assert pytest.approx(TTFT) == one.ttft
    assert 2 == len(_read(tmp_path, [found, found]))


@pytest.mark.parametrize(
    "found", [_inference_perf({}), _aiperf({"phases": [{"name": "profiling", "type": "poisson", "rate": 4.0}]})]
)
def test_arrivals_at_a_rate_have_a_mean_batch(found: dict[str, Any], tmp_path: Path) -> None:
    """By served requests and times; of the rate that was sent, not of the one that was asked for."""
    (one,) = _read(tmp_path, found)

    served = 3.9 if "successes" in found else 8 / LATENCY
    assert pytest.approx(1 + served * (LATENCY - TTFT)) == one.requests


def test_a_closed_loop_has_no_rate_that_was_not_kept_up(tmp_path: Path) -> None:
    """How fast the first requests were sent is no offered load: all of them were served."""
    path = tmp_path / "result.json"
    path.write_text(json.dumps(_inference_perf({"concurrency": 8, "achieved_rate": 40.0})))

    assert "left when arrivals ended" not in " ".join(read_measurements(path).notes)
    path.write_text(json.dumps(_inference_perf({"achieved_rate": 40.0})))
    assert "left when arrivals ended" in " ".join(read_measurements(path).notes)


def test_the_draft_is_read_where_the_tool_counts_it(tmp_path: Path) -> None:
    """A draft length that follows from what is counted: steps and draft tokens, or both acceptance figures of trtllm-bench."""
    drafted = _aiperf(
        {"loadgen": {"concurrency": 8}},
        total_spec_decode_steps={"unit": "count", "avg": 1000.0},
        total_draft_tokens={"unit": "tokens", "avg": 2990.0},
        spec_decode_acceptance_length=_stats(2.6, "ratio"),
        spec_decode_token_weighted_acceptance_length={"unit": "ratio", "avg": 2.5},
    )
    stats = {
        "mode": "Eagle",
        "acceptance_length_percentiles": {"average": 2.5, "p50": 2.4},
        "draft_acceptance_rate_percentiles": {"average": 0.5, "p50": 0.5},
    }
    for found in (drafted, _trtllm(decoding_stats=stats)):
        (one,) = _read(tmp_path, found)

        assert (3, 2.5) == (one.gamma, one.tokens_per_step)
        assert pytest.approx(TPOT) == one.token_seconds
    with pytest.raises(UsageError, match="a file of trtllm-bench without acceptance_length"):
        _read(tmp_path, _trtllm(decoding_stats={"mode": "Eagle"}))


def test_a_draft_that_the_tool_does_not_count_is_given(tmp_path: Path) -> None:
    """After the name of the file; that none is stated is said."""
    _read(tmp_path, _inference_perf({}))
    assert any(
        "no draft is stated, so plain decoding" in note for note in read_measurements(tmp_path / "result.json").notes
    )
    (one,) = _read(tmp_path, _inference_perf({}), gamma=3, acceptance_length=2.5)

    assert (3, 2.5) == (one.gamma, one.tokens_per_step)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (_trtllm(streaming_metrics=None), "without tpot_ms: run it with --streaming"),
        (_aiperf({}, inter_token_latency=None), "without tpot_ms: run it with --streaming"),
        (_aiperf({}, error_request_count={"unit": "requests", "avg": 100.0}), "100 of 500 requests failed"),
        (_aiperf({"concurrency": 8}, inter_token_latency=_stats(1e7, "ns")), "times in milliseconds need ms"),
        (_inference_perf({"achieved_rate": None}), "give stage_N_lifecycle_metrics.json of each stage"),
        (_inference_perf({}, latency={}), "without tpot_s: give stage_N"),
        ({"metadata": {"benchmark_phase": "profiling"}, "metrics": {}}, "tokens: run it with --streaming, and give profile_"),
        ({"aiperf_version": "0.13.0", "metrics": {}}, "give profile_export_aiperf.json (profile_export_genai"),
        (_aiperf({"phases": []}, output_sequence_length={"avg": "many"}), "which is not a number"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line(found: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Which file of the tool has it, or how to run it."""
    with pytest.raises(UsageError) as refused:
        _read(tmp_path, found)

    assert message in str(refused.value)

"""Results that say themselves that they are none: requests that failed, answers that were not streamed, counted chunks."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UsageError
from pipeline.latency.costs.measurements import read_measurements

_SOUND = {
    "request_rate": "inf",
    "max_concurrency": 4,
    "num_prompts": 40,
    "completed": 40,
    "duration": 21.0,
    "total_output_tokens": 8000,
    "mean_ttft_ms": 30.0,
    "mean_tpot_ms": 10.0,
    "mean_itl_ms": 10.0,
}
# 3 draft tokens, 2.5 tokens per step
_DRAFTED = {
    **_SOUND,
    "spec_decode_acceptance_length": 2.5,
    "spec_decode_num_drafts": 3200,
    "spec_decode_draft_tokens": 9600,
    "spec_decode_accepted_tokens": 4800,
}
_REPORT = {
    name: {"successful": {"mean": mean}, "total": {"mean": mean}}
    for name, mean in {
        "request_concurrency": 4.0,
        "requests_per_second": 2.0,
        "inter_token_latency_ms": 10.0,
        "time_to_first_token_ms": 30.0,
        "request_latency": 2.02,
        "output_token_count": 200.0,
    }.items()
}


def _report(**totals: int) -> Any:
    return {"benchmarks": [{"metrics": {**_REPORT, "request_totals": totals}}]}


def _write(tmp_path: Path, result: Any) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({**_SOUND, "num_prompts": 500, "completed": 1, "total_output_tokens": 200}, "499 of 500 requests failed"),
        ({**_SOUND, "failed": 3}, "3 of 43 requests failed"),
        ({**_SOUND, "completed": 0, "total_output_tokens": 0}, "40 of 40 requests failed"),
        (_report(successful=30, errored=10, incomplete=4), "10 of 40 requests failed"),
        ({**_SOUND, "mean_tpot_ms": 0.0, "mean_itl_ms": 0.0}, "the answers were not streamed"),
        ({**_SOUND, "total_output_tokens": 330, "total_output_tokens_retokenized": 800}, "330 output tokens, and its texts have"),
        ({**_DRAFTED, "total_output_tokens": 3240}, "3,240 output tokens, and the server's counters have 8,000"),
    ],
)  # fmt: skip
def test_a_result_that_is_none_is_refused(tmp_path: Path, result: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_measurements(_write(tmp_path, result))


@pytest.mark.parametrize(
    ("result", "step"),
    [
        (_SOUND, 0.01),
        ({**_SOUND, "failed": 2}, 0.01),
        ({**_SOUND, "num_prompts": 41}, 0.01),
        ({**_SOUND, "total_output_tokens_retokenized": 3300}, 0.01),  # special tokens, which no text has
        (_DRAFTED, 0.025),
        (_report(successful=40, errored=1, incomplete=10), 0.01),
    ],
)
def test_a_sound_result_is_read(tmp_path: Path, result: Any, step: float) -> None:
    (one,) = read_measurements(_write(tmp_path, result)).measured
    assert pytest.approx(step, rel=0.02) == one.step_seconds


def test_a_table_with_a_row_for_each_metric_is_named_as_one(tmp_path: Path) -> None:
    """No column of it is a quantity, so none may be named."""
    path = tmp_path / "profile_export_genai_perf.csv"
    path.write_text("Metric,avg,min,p50\nTime To First Token (ms),30,1,30\nInter Token Latency (ms),10,9,10\n")
    with pytest.raises(UsageError, match=r"a row for each metric .* write a row for each load"):
        read_measurements(path)

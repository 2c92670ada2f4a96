"""The statistics of one request in the rows of a log, as each engine writes them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from pipeline.corpus.request_counts import has_impossible_counts, request_counts
from pipeline.engines.counts import Counts
from tests.strategies import mutated

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LOGS / name).read_text().splitlines()]


def _first(name: str) -> Counts:
    return next(counts for row in _rows(name) if (counts := request_counts(row)) is not None)


def test_rows_of_vllm_have_drafts_and_first_tokens() -> None:
    """`metrics.speculative_decoding`, with its histogram."""
    assert Counts(drafts=14, draft_tokens=42, accepted=33, accepted_first=12, tokens=46) == _first(
        "vllm_speculating.jsonl"
    )


def test_rows_of_sglang_have_them_in_two_places() -> None:
    """`sglext.spec_tokens_details`, and `meta_info` of the choice."""
    found = [counts for row in _rows("sglang.jsonl") if (counts := request_counts(row)) is not None]
    assert Counts(drafts=16, draft_tokens=48, accepted=30, tokens=46) in found
    assert Counts(drafts=7, draft_tokens=21, accepted=14, tokens=21) in found


def test_rows_of_llama_cpp_have_no_number_of_drafts() -> None:
    """`timings`, also beside the choices of a stream."""
    assert Counts(draft_tokens=36, accepted=34, tokens=46) == _first("llama_cpp.jsonl")


def test_rows_without_speculation_have_no_counts() -> None:
    """`metrics: null`, and null counts of LiteLLM."""
    assert [None] == list({request_counts(row) for name in ("vllm.jsonl", "litellm.jsonl") for row in _rows(name)})


def _vllm(**changes: Any) -> dict[str, Any]:
    found = {"num_spec_steps": 4, "num_draft_tokens": 12, "num_accepted_draft_tokens": 6}
    return {"metrics": {"speculative_decoding": {**found, "acceptance_histogram": [1, 1, 1, 1], **changes}}}


@pytest.mark.parametrize(
    "row",
    [
        {"response": _vllm()},
        {"response": {"status_code": 200, "body": _vllm()}},
        {"said": _vllm(), "response": {"metrics": None}},
        {"prompt": "text", **_vllm()},
    ],
)
def test_counts_are_found_where_answers_are(row: dict[str, Any]) -> None:
    """In the column of the answers, in a `body`, in the row."""
    assert Counts(drafts=4, draft_tokens=12, accepted=6, accepted_first=3) == request_counts(row, "said")


def test_the_native_answer_of_sglang_is_read() -> None:
    """`/generate` has no choices."""
    info = {"spec_verify_ct": 4, "spec_num_proposed_drafts": 12, "spec_num_correct_drafts": 6, "completion_tokens": 11}
    info["spec_correct_drafts_histogram"] = [1, 1, 1, 1]  # type: ignore[assignment]
    expected = Counts(drafts=4, draft_tokens=12, accepted=6, accepted_first=3, tokens=11)
    assert expected == request_counts({"response": {"text": "a", "meta_info": info}})


def test_accepted_and_rejected_predictions_are_read() -> None:
    """The form of OpenAI's API."""
    details = {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 4}
    usage = {"completion_tokens": 11, "completion_tokens_details": details}
    assert Counts(draft_tokens=10, accepted=6, tokens=11) == request_counts({"response": {"usage": usage}})


@pytest.mark.parametrize("histogram", [None, [], "1111", [4], [1, 1, 1, 1, 1], [2, 0, 0, 2.5], [1, 1, -1, 3], [None]])
def test_a_histogram_of_other_counts_tells_nothing(histogram: Any) -> None:
    """The other counts are still used."""
    expected = Counts(drafts=4, draft_tokens=12, accepted=6)
    assert expected == request_counts({"response": _vllm(acceptance_histogram=histogram)})


@pytest.mark.parametrize(
    "row",
    [
        None,
        [],
        "text",
        {"response": 5},
        {"response": {"metrics": [1], "timings": "x", "usage": 3, "sglext": [], "choices": [None]}},
        *({"response": _vllm(num_accepted_draft_tokens=bad)} for bad in (None, True, -1, 13, 2.5, "6", float("nan"))),
        *({"response": _vllm(num_draft_tokens=bad)} for bad in (None, 0, 5, 10**30, float("inf"))),
        *({"response": _vllm(num_spec_steps=bad)} for bad in (0, 13)),
    ],
)
def test_counts_that_cannot_be_are_none(row: Any) -> None:
    """Never an error: damaged rows are in every log."""
    assert request_counts(row) is None


@pytest.mark.parametrize("name", ["vllm_speculating.jsonl", "sglang.jsonl", "llama_cpp.jsonl"])
def test_counts_that_cannot_be_are_told_from_none(name: str) -> None:
    """More accepted tokens than proposed ones, and what is no count; a row of a request without a draft states none."""
    rows = [row for row in _rows(name) if request_counts(row) is not None]
    text = json.dumps(rows[0])
    assert not has_impossible_counts(rows[0])
    for field in ("num_accepted_draft_tokens", "spec_num_correct_drafts", "draft_n_accepted"):
        text = re.sub(rf'"{field}": \d+', f'"{field}": 1000', text)
    assert has_impossible_counts(json.loads(text))
    assert not has_impossible_counts(json.loads(re.sub(r'"(\w*draft\w*)": \d+', r'"\1": 0', json.dumps(rows[0]))))
    assert not any(has_impossible_counts(row) for row in ({"messages": []}, 7, None))


@settings(deadline=None)
@given(mutated([row for name in ("vllm_speculating", "sglang", "llama_cpp") for row in _rows(f"{name}.jsonl")[:2]]))
def test_damaged_rows_are_none_or_a_rate(row: Any) -> None:
    """Whatever is in them."""
    counts = request_counts(row)
    rate = None if counts is None else counts.examined_acceptance_rate
    assert rate is None or 0.0 <= rate <= 1.0

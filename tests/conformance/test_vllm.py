"""The examination against vLLM's own counters, on texts that vLLM itself produced, and against vLLM when it is broken.

Chance of a false alarm with fresh seeds: 15 counts within 3 standard errors and 10 texts within 4, so below 5 in 100.
Seeds are fixed, so that one machine sees one result.
"""

from typing import Any

import pytest

from tests.conformance.cases import against_the_target, check_trace, exact_row, label, pooled_row, require_exact
from tests.conformance.engines import Engine, vllm_job
from tests.conformance.subject import TOKENS, Subject
from tests.conformance.texts import TokenizedText, sample_texts

GAMMAS = [1, 3, 5]
SEEDS = range(8)
COPIES = 4
Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def target_texts(subject: Subject) -> list[TokenizedText]:
    """Several texts of the target for each prompt at temperature 1."""
    texts = []
    for seed in range(COPIES):
        model, stop = subject.target_model, subject.stop_tokens
        texts += sample_texts(model, subject.prompts, TOKENS, max(GAMMAS) - 1, stop, subject.vocabulary, seed)
    return texts


def _ask(vllm: Engine, subject: Subject, gamma: int, calls: list[tuple[float, int]], **more: Any) -> dict[str, Any]:
    job = vllm_job(subject.target, subject.draft, subject.prompts, TOKENS, calls, gamma=gamma, **more)
    result = vllm.run(job)
    for call in result["calls"]:
        check_trace(call)
    return result


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_greedy_draft_is_predicted_exactly(
    vllm: Engine, subject: Subject, target_texts: list[TokenizedText], rows: Rows, gamma: int
) -> None:
    """Drafts, accepted and per-position counts are identical at temperature 0 and 1, but for near-ties that are listed."""
    result = _ask(vllm, subject, gamma, [(0.0, 0), (1.0, 0)])
    for call in result["calls"]:
        row = label(result, "repaired", call["temperature"], "greedy", gamma) | exact_row(subject, call, gamma)
        rows.append(row)
        require_exact(row)
        if call["temperature"]:
            row["on_the_targets_text"] = against_the_target(subject, target_texts, COPIES, [call], gamma, "greedy")
            assert abs(row["on_the_targets_text"]["difference_in_standard_errors"]) < 4


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_sampled_draft_is_predicted_within_three_standard_errors(
    vllm: Engine, subject: Subject, target_texts: list[TokenizedText], rows: Rows, gamma: int
) -> None:
    """Pooled over eight seeds at temperature 1, every counter is within 3 standard errors of the prediction for the same
    texts."""
    result = _ask(vllm, subject, gamma, [(1.0, seed) for seed in SEEDS], draft_sampling="probabilistic")
    row = label(result, "repaired", 1.0, "probabilistic", gamma) | pooled_row(subject, result["calls"], gamma)
    row["on_the_targets_text"] = against_the_target(
        subject, target_texts, COPIES, result["calls"], gamma, "probabilistic"
    )
    rows.append(row)
    assert row["largest_difference"] < 3
    assert abs(row["text"]["standard_errors"]) < 4
    assert abs(row["on_the_targets_text"]["difference_in_standard_errors"]) < 4


def test_the_shipped_build_is_right_at_temperature_0(vllm: Engine, subject: Subject, rows: Rows) -> None:
    """Without the repair, greedy decoding equals the target's and its counters are as predicted."""
    result = _ask(vllm, subject, 5, [(0.0, 0)], repaired=False)
    row = label(result, "shipped", 0.0, "greedy", 5) | exact_row(subject, result["calls"][0], 5)
    rows.append(row)
    require_exact(row)


def test_the_shipped_build_is_detected_at_temperature_1_with_a_greedy_draft(
    vllm: Engine, subject: Subject, target_texts: list[TokenizedText], rows: Rows
) -> None:
    """The shipped build does not sample from the target: rejected tokens are emitted again, so rounds do not even match its own
    text. It divides by uninitialised memory, so only orders of magnitude are tested, and how far its text is from the target's
    is not: 11 to 33 standard errors were seen, and 1.7 once."""
    result = _ask(vllm, subject, 5, [(1.0, 0)], repaired=False)
    row = label(result, "shipped", 1.0, "greedy", 5) | exact_row(subject, result["calls"][0], 5)
    row["on_the_targets_text"] = against_the_target(subject, target_texts, COPIES, result["calls"], 5, "greedy")
    rows.append(row)
    assert len(row["unexplained"]) > 10


def test_the_shipped_build_is_detected_at_temperature_1_with_a_sampled_draft(
    vllm: Engine, subject: Subject, target_texts: list[TokenizedText], rows: Rows
) -> None:
    """All three views detect it: the text, the counters on that text, the counters on the target's text."""
    result = _ask(vllm, subject, 5, [(1.0, 0), (1.0, 1)], repaired=False, draft_sampling="probabilistic")
    row = label(result, "shipped", 1.0, "probabilistic", 5) | pooled_row(subject, result["calls"], 5)
    row["on_the_targets_text"] = against_the_target(subject, target_texts, COPIES, result["calls"], 5, "probabilistic")
    rows.append(row)
    assert row["largest_difference"] > 10
    assert abs(row["text"]["standard_errors"]) > 5  # seen: 11 to 33
    assert row["on_the_targets_text"]["difference_in_standard_errors"] < -10

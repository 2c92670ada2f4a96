"""The examination against openvino-genai at temperature 0: equal target calls and tokens per call."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import openvino_row
from tests.conformance.engines import Engine, openvino_job
from tests.conformance.subject import TOKENS, Subject


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of exported models."""
    return tmp_path_factory.mktemp("openvino")


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_target_calls_are_predicted_exactly(
    openvino: Engine, subject: Subject, work: Path, rows: list[dict[str, Any]], gamma: int
) -> None:
    """Calls are identical, and the text is the target's, but for near-ties that are listed."""
    stop = subject.stop_tokens[0]
    result = openvino.run(
        openvino_job(subject.target, subject.draft, subject.prompts, TOKENS, work, stop_token=stop, gamma=gamma)
    )
    row = {
        "engine": result["engine"],
        "version": result["version"],
        "build": "shipped",
        "temperature": 0.0,
        "draft_sampling": "greedy",
        "gamma": gamma,
        "prompts": len(subject.prompts),
    } | openvino_row(subject, result["calls"][0], gamma)
    rows.append(row)
    assert [] == row["unexplained"]
    assert row["near_ties_of_the_draft"] or row["identical"]
    assert [] == row["not_the_target"]

"""The examination against openvino-genai at temperature 0: equal target calls and tokens per call."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.export.schema import read_expected
from tests.conformance.cases import label, openvino_row, require_exact
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
    row = label(result, "shipped", 0.0, "greedy", gamma) | openvino_row(subject, result["calls"][0], gamma)
    rows.append(row)
    require_exact(row)


def test_the_exported_draft_is_the_examined_one(openvino: Engine, subject: Subject, work: Path, tmp_path: Path) -> None:
    """The champion exported for transformers, converted for openvino-genai: calls at its gamma are those of the examination."""
    out = tmp_path / "exported"
    command = [sys.executable, "-m", "understudy_cli", "champion", "export", "quickstart-draft@champion"]
    command += ["--engine", "transformers", "--out", str(out)]
    command += ["--store", os.environ.get("CONFORMANCE_STORE", ".understudy")]
    subprocess.run(command, check=True)
    gamma, stop = read_expected(out).gamma, subject.stop_tokens[0]
    result = openvino.run(
        openvino_job(subject.target, out / "draft", subject.prompts, TOKENS, work, stop_token=stop, gamma=gamma)
    )
    require_exact(openvino_row(subject, result["calls"][0], gamma))

"""What all trainings of a run share."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pipeline.config.loading import parse_config
from pipeline.distillation.training import Training
from pipeline.distillation.training_log import OMEGA, PEAK, RATE, TRIAL
from pipeline.examination.examiner import AcceptanceSummary, Examiner
from pipeline.running.jobs import training_settings
from tests.fakes import quiet, stored_completion, tiny_llama


def _examiner(**evaluate: Any) -> Any:
    return _training(**evaluate).examiner


def _training(**evaluate: Any) -> Training:
    models = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    raw = {"name": "t", "pair": models, "corpus": {"sources": [{"path": "reference"}]}, "evaluate": evaluate}
    pair = cast(Any, SimpleNamespace(vocabulary=8, tokenizer=Path("nowhere")))
    settings = training_settings(parse_config(raw, "test"))
    return Training(settings, pair, [stored_completion([1], [2, 3])], quiet(), "cpu", False)


def test_an_examination_on_dev_prompts_goes_on_in_smaller_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line; the next one begins with the batch that fitted."""
    asked = list[int]()

    def acceptance_of(self: Examiner, draft: Any, completions: Any, numbers: Any) -> list[Any]:
        asked.append(self.settings.batch_tokens)
        if asked[-1] > 3000:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [np.full(len(completions[number].tokens), 0.5) for number in numbers]

    monkeypatch.setattr(Examiner, "acceptance_of", acceptance_of)
    training = _training()
    assert [0.5] * 2 == [training.examine(None).acceptance for _ in range(2)]
    assert [8192, 4096, 2048, 2048] == asked
    assert (
        "examination on dev prompts: tokens of a batch: out of memory; going on with 2,048" in capsys.readouterr().err
    )


@pytest.mark.parametrize("evaluate", [{"gamma": 2}, {"convention": "transformers"}, {"max_gamma": 5}], ids=str)
def test_checkpoints_are_compared_by_a_measure_of_their_own(evaluate: dict[str, Any]) -> None:
    """Settings that count the examination otherwise enter no training's key, so they must not choose the kept step."""
    expected, found = _examiner(), _examiner(**evaluate)

    assert expected.settings == found.settings
    assert expected.counting == found.counting
    assert 5 == found.settings.gamma


def test_a_trial_examines_the_draft_that_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the model that is trained: of one that is divided among processes that is a plain copy, and the model itself would wait
    for passes of the others. The first draft is examined once; a later one may be broken."""
    training, examined = _training(), list[Any]()

    def examination(self: Training, draft: Any) -> AcceptanceSummary | str:
        examined.append(draft)
        return "NaN" if draft == "ruined" else AcceptanceSummary(0.5, 2.0)

    def train(model: Any, rows: Any, weights: Any, settings: Any, seed: int, work: Path, examine: Any) -> Any:
        found = [examine("whole copy"), examine("ruined" if len(examined) == 1 else "better")]
        return [
            {"step": step, RATE: one.acceptance, OMEGA: one.omega} for step, one in zip((0, 10), found, strict=True)
        ]

    monkeypatch.setattr(Training, "_examination", examination)
    monkeypatch.setattr(Training, "train", lambda self, *given: train(*given))
    rate, log = training._find_rate(tiny_llama(51, layers=1, dtype=torch.float32), [], {}, tmp_path)
    assert ["whole copy", "ruined", "better", "better"] == examined
    assert [None, 2.0, 2.0] == [entry.get(OMEGA) for entry in log if TRIAL in entry]
    assert rate == log[-1][PEAK]

"""A step of the run's own training, before anything is paid."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pipeline.config.distill import DistillConfig, LoraConfig
from pipeline.config.loading import parse_config
from pipeline.distillation import trainer, trial_step
from pipeline.distillation.trial_step import prove_training
from pipeline.errors import UnderstudyError
from pipeline.running.jobs import training_settings
from tests.fakes import tiny_llama, tiny_tokenizer


@pytest.fixture
def prove(tmp_path: Path) -> Callable[..., None]:
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")

    def step(model: Any = None, **distill: Any) -> None:
        model = tiny_llama(1, layers=1, dtype=torch.float32) if model is None else model
        model.save_pretrained(tmp_path / "draft")
        models = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
        raw = {"name": "t", "pair": models, "corpus": {"sources": [{"path": "reference"}]}}
        config = parse_config(raw, "test")
        config = config.model_copy(update={"distill": DistillConfig(bf16=False, **distill)})
        pair = SimpleNamespace(vocabulary=32, tokenizer=tmp_path / "tokenizer", path=lambda role: tmp_path / role)
        prove_training(cast(Any, pair), training_settings(config), "cpu", False, tmp_path / "work")
        assert [] == list((tmp_path / "work").iterdir())

    (tmp_path / "work").mkdir()
    return step


@pytest.mark.parametrize(
    "distill",
    [{}, {"optimizer": "muon", "loss": "forward_kl"}, {"lora": LoraConfig(rank=2), "loss": "cross_entropy"}],
    ids=str,
)
def test_the_runs_own_step_is_made(
    prove: Callable[..., None], distill: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its loss, optimizer and adapters, which alone move where there are some; nothing is left."""
    made, real = [], trainer.distill

    def spied(model: Any, tokenizer: Any, completions: Any, settings: DistillConfig, **rest: Any) -> Any:
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        log = real(model, tokenizer, completions, settings, **rest)
        moved = {name for name, weight in model.named_parameters() if not torch.equal(before[name], weight)}
        made.append((settings, moved, [entry["step"] for entry in log if "loss" in entry]))
        return log

    monkeypatch.setattr(trainer, "distill", spied)
    prove(**distill)

    ((settings, moved, steps),) = made
    expected = DistillConfig(bf16=False, **{"learning_rate": 1e-3, **distill})  # what is to be found is not tried here
    chosen = ("loss", "optimizer", "lora", "learning_rate")
    assert [getattr(expected, name) for name in chosen] == [getattr(settings, name) for name in chosen]
    assert [1] == steps
    assert moved
    assert {settings.lora is not None} == {"lora" in name for name in moved}


def test_a_step_that_fails_is_said_with_the_settings(
    prove: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimizer that does not take a weight of the draft, here any; in one line."""

    def refuse(*_: object) -> None:
        raise ValueError("Muon only supports 2D parameters")

    monkeypatch.setattr("pipeline.distillation.trainer.MuonWithAdamW", refuse)
    said = (
        r"draft: a step of training fails: ValueError: Muon only .*; use another draft, or .*optimizer muon, lora off\)"
    )
    with pytest.raises(UnderstudyError, match=said):
        prove(optimizer="muon")


def test_weights_that_a_step_spoils_are_found(prove: Callable[..., None]) -> None:
    """Of a learning rate that no number holds, and of weights whose loss is none."""
    with pytest.raises(UnderstudyError, match=r"leaves weights that are NaN or infinite; lower distill\.learning_rate"):
        prove(learning_rate=1e38)
    model = tiny_llama(1, layers=1, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("inf"))
    with pytest.raises(UnderstudyError, match="NaN or infinite"):
        prove(model)


def test_a_large_draft_makes_a_step_without_numbers(
    prove: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory and no disk is taken for it."""
    monkeypatch.setattr(trial_step, "_MOST_PARAMETERS", 10)
    monkeypatch.setattr(trial_step, "_step", None)
    prove()

"""Training: the CPU's weights, losses and log, resumed too, and two waits a step."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.distill import LoraConfig
from pipeline.distillation.losses import LOSSES
from tests.device.on_device import APART, DEVICE, ON_GPU, waits
from tests.integration.trained import (
    SETTINGS,
    Killed,
    flat,
    killed_before_the_last_examination,
    rows_of,
    train,
    trained,
)

ROWS = 7


def _there(model: Any) -> Any:
    return model.to(DEVICE)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("loss", ["cross_entropy", *LOSSES])
def test_a_draft_is_trained_as_on_the_cpu(loss: Any, optimizer: Any, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"loss": loss, "optimizer": optimizer})
    _, log = trained(settings, ROWS, tmp_path / "here")
    _, other = trained(settings, ROWS, tmp_path / "there", prepared=_there)

    assert flat(other) == pytest.approx(flat(log), rel=APART)


@pytest.mark.parametrize(
    "changes",
    [{"lora": LoraConfig(rank=4)}, {"bf16": True}, {"accumulation": 2}, {"gradient_checkpointing": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_ways_of_training(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers knows of bfloat16 on the GPUs that it knows.
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    settings = SETTINGS.model_copy(update=changes)
    _, log = trained(settings, ROWS, tmp_path / "here")
    weights, other = trained(settings, ROWS, tmp_path / "there", prepared=_there)

    apart = 0.02 if settings.bf16 else APART
    assert all(torch.tensor(values).isfinite().all() for values in weights.values())
    assert _losses(other) == pytest.approx(_losses(log), rel=apart)


@pytest.mark.skipif(not ON_GPU, reason="torch compiles for a GPU")
@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=["float32", "bf16"])
def test_compiled_layers_are_trained_as_on_the_cpu(changes: dict[str, Any], tmp_path: Path) -> None:
    """And examined in between, as they are written."""
    settings = SETTINGS.model_copy(update=changes)
    _, log = trained(settings, ROWS, tmp_path / "here")
    compiled = settings.model_copy(update={"compile": True})
    _, other = trained(compiled, ROWS, tmp_path / "there", prepared=_there)

    assert flat(other) == pytest.approx(flat(log), rel=0.02 if settings.bf16 else APART)


def _losses(log: list[dict[str, Any]]) -> list[float]:
    return [entry["loss"] for entry in log if "loss" in entry]


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_killed_training_goes_on_bit_for_bit(optimizer: Any, tmp_path: Path) -> None:
    """Weights, log and the order of rows are those of a training that was not killed, on the same device."""
    settings = SETTINGS.model_copy(update={"optimizer": optimizer})
    whole = trained(settings, ROWS, tmp_path / "whole", prepared=_there)
    with pytest.raises(Killed):
        trained(settings, ROWS, tmp_path / "killed", prepared=_there, before=killed_before_the_last_examination())
    assert whole == trained(settings, ROWS, tmp_path / "killed", prepared=_there)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_host_waits_twice_a_step(optimizer: Any, tmp_path: Path) -> None:
    """For the loss, which has to be a number, and within transformers, which looks whether rows hold several documents. A
    logged step waits four more times; the difference of two lengths leaves out what begins and ends a training."""
    counts = dict[int, Counter[str]]()
    for steps in (200, 250):
        settings = SETTINGS.model_copy(
            update={"optimizer": optimizer, "max_steps": steps, "save_every": steps, "evaluate_every": steps}
        )
        with waits() as waited:
            trained(settings, ROWS, tmp_path / str(steps), prepared=_there)
        counts[steps] = waited.by_line
    more = counts[250] - counts[200]
    logged = 250 // 5 - 200 // 4  # every fifth step of 250, every fourth of 200
    assert logged == 0

    assert more.total() <= 2 * 50, more


def test_the_draft_is_trained_where_it_is(tmp_path: Path) -> None:
    """accelerate by itself would take the first GPU, or here the CPU."""
    model, _ = train(tmp_path, SETTINGS, rows_of(ROWS), wrap=_there)
    assert {DEVICE} == {weight.device for weight in model.parameters()}

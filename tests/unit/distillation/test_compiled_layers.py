"""Which layers are compiled, and for how long. What torch makes of them is tried on a GPU (`make test-gpu`)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.config.distill import DistillConfig, LoraConfig
from pipeline.distillation import compiled_layers as module
from pipeline.distillation.compiled_layers import as_written, compiled_layers, compiles
from pipeline.distillation.training_callback import TrainingCallback
from pipeline.examination.examiner import AcceptanceSummary
from tests.fakes import tiny_llama

LONG = {"max_steps": 200}


class _OnGpu(nn.Module):
    """Of so many parameters, on a device that is asked for its type alone."""

    def __init__(self, parameters: int, device: str = "cuda") -> None:
        super().__init__()
        weight: Any = nn.Parameter(torch.empty(parameters, device="meta"))
        self.weight, self._device = weight, device

    def parameters(self, recurse: bool = True) -> Any:
        yield _Weight(self.weight.numel(), torch.device(self._device))


class _Weight:
    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self.device = count, device

    def numel(self) -> int:
        return self._count


@pytest.mark.parametrize(
    ("expected", "parameters", "device", "settings"),
    [
        (True, 100_000_000, "cuda", LONG),
        (False, 99_999_999, "cuda", LONG),
        (False, 100_000_000, "cpu", LONG),
        (False, 100_000_000, "cuda", {"max_steps": 199}),
        (False, 100_000_000, "cuda", LONG | {"gradient_checkpointing": True}),
        (False, 100_000_000, "cuda", LONG | {"lora": LoraConfig(rank=4)}),
        (False, 100_000_000, "cuda", LONG | {"shard": True}),
        (False, 100_000_000, "cuda", LONG | {"compile": False}),
        (True, 10, "cpu", {"compile": True}),
    ],
)
def test_long_trainings_of_large_drafts_on_a_gpu(
    expected: bool, parameters: int, device: str, settings: dict[str, Any]
) -> None:
    assert expected == compiles(_OnGpu(parameters, device), DistillConfig(**settings))


def test_layers_are_compiled_until_the_end_and_as_written_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder's layers, until the end of the block; the compiled ones compute a training's passes, not an examination's."""
    model, passes = tiny_llama(1), list[str]()

    def compile_(layer: Any) -> None:
        def compiled(*args: Any, **more: Any) -> Any:
            passes.append("compiled")
            return layer._call_impl(*args, **more)

        layer._compiled_call_impl = compiled

    monkeypatch.setattr(nn.Module, "compile", compile_)
    ids = torch.tensor([[1, 2, 3]])
    expected = model(ids).logits
    with compiled_layers(model, DistillConfig(compile=True)):
        assert torch.equal(expected, model(ids).logits)
        assert len(passes) == len(model.model.layers)
        with as_written(model):
            model(ids)
        assert len(passes) == len(model.model.layers)
        model(ids)
        assert len(passes) == 2 * len(model.model.layers)
    model(ids)
    assert len(passes) == 2 * len(model.model.layers)


def test_examinations_of_a_training_are_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pipeline.distillation.training_callback.keep_best", lambda *args: None)
    model, found = tiny_llama(1), list[bool]()
    for layer in model.model.layers:
        layer._compiled_call_impl = layer._call_impl
    trainer = SimpleNamespace(model=model, state=SimpleNamespace(log_history=[], global_step=0))

    def examine(model: Any) -> AcceptanceSummary:
        found.append(any(layer._compiled_call_impl is not None for layer in model.model.layers))
        return AcceptanceSummary(0.5, 1.0)

    unused: Any = None
    callback = TrainingCallback(trainer, DistillConfig(), unused, examine, unused, tmp_path)
    callback._examine(SimpleNamespace(should_training_stop=False))

    assert [False] == found
    assert all(layer._compiled_call_impl is not None for layer in model.model.layers)


def test_what_is_not_compiled_does_not_load_the_compiler() -> None:
    """It takes a second."""
    model = tiny_llama(1)
    with compiled_layers(model, DistillConfig()):
        assert not module.compiles(model, DistillConfig())
        assert all(layer._compiled_call_impl is None for layer in model.model.layers)

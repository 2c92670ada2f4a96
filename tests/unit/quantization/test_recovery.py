"""Quantization-aware distillation with fake-quantized weights."""

from pathlib import Path

import pytest
import torch

from pipeline.models.loading import load_model
from pipeline.quantization.recovery import fake_quantization
from pipeline.quantization.variants import quantize
from tests.fakes import full_logits, tiny_llama

CPU = torch.device("cpu")
IDS = [3, 1, 4, 1, 5, 9]


@pytest.mark.parametrize(("variant", "hidden"), [("int8", 64), ("int4", 64), ("fp8", 256)])
def test_it_sees_the_variant(tmp_path: Path, variant: str, hidden: int) -> None:
    """Within the context, logits equal those of the saved and reloaded variant up to matmul precision; outside they
    differ clearly."""
    model = tiny_llama(71, hidden=hidden, spread=0.1)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "draft")
    made = quantize(tmp_path / "draft", variant, tmp_path / "out", CPU)
    theirs = full_logits(load_model(tmp_path / "out", "bfloat16", CPU), IDS).float()
    model = load_model(tmp_path / "draft", "float32", CPU)
    plain = full_logits(model, IDS)
    with fake_quantization(model, variant, made.layers):
        ours = full_logits(model, IDS)

    assert float((ours - theirs).norm() / theirs.norm()) < 0.02
    assert torch.equal(plain, full_logits(model, IDS))
    if variant != "int8":
        assert float((plain - theirs).norm() / theirs.norm()) > 0.06


@pytest.mark.parametrize("variant", ["int8", "int4", "fp8"])
def test_gradients_go_straight_through(variant: str) -> None:
    """The gradient ignores rounding: of a sum over outputs it is the sum of inputs; steps smaller than a level accumulate."""
    layer = torch.nn.Linear(128, 128, bias=False)
    model = torch.nn.ModuleDict({"own": layer, "other": torch.nn.Linear(128, 128)})
    x, before = torch.randn(5, 128), layer.weight.detach().clone()
    with fake_quantization(model, variant, frozenset({"own"})):
        model["own"](x).sum().backward()
        (original,) = (value for name, value in model["own"].named_parameters())
        torch.testing.assert_close(original.grad, x.sum(0).expand(128, 128))
        with torch.no_grad():
            original += 1e-6

    assert type(model["own"]) is torch.nn.Linear
    torch.testing.assert_close(model["own"].weight.detach(), before + 1e-6, rtol=0, atol=1e-8)
    assert model["other"].weight.grad is None


def test_a_row_of_zeros_stays() -> None:
    """Its largest absolute weight is 0."""
    model = torch.nn.ModuleDict({"own": torch.nn.Linear(128, 128, bias=False)})
    torch.nn.init.zeros_(model["own"].weight)
    for variant in ("int8", "int4", "fp8"):
        with fake_quantization(model, variant, frozenset({"own"})):
            assert not model["own"].weight.any()


def test_a_training_that_fails_leaves_plain_layers() -> None:
    """Fake quantization is removed after an exception."""
    model = torch.nn.ModuleDict({"own": torch.nn.Linear(128, 128)})
    with pytest.raises(KeyError), fake_quantization(model, "fp8", frozenset({"own"})):
        raise KeyError

    assert type(model["own"]) is torch.nn.Linear

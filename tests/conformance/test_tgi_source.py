"""Medusa heads as they are exported, loaded and computed by TGI's own code of the heads (`layers/medusa.py`).

TGI is in no package index, so its directory is named by hand: TGI_SOURCE=.../server/text_generation_server of a checkout.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from torch import nn

from pipeline.drafts.kinds import MEDUSA
from tests.conformance.sources import module_of, source, strings_of
from tests.heads import medusa_draft, write_medusa
from tests.unit.export.test_heads import exported, head_plan, saved_target

HEADS, PACKAGE = 3, "text_generation_server"


@pytest.fixture(scope="module")
def tgi() -> Path:
    return source("TGI_SOURCE")


class Weights:
    """TGI's weights: files by the names of tensors."""

    def __init__(self) -> None:
        self.routing: dict[str, str] = {}

    def read(self, name: str) -> torch.Tensor:
        with safe_open(self.routing[name], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


class Linear(nn.Module):
    """Its `FastLinear`, which has a bias where the caller says so."""

    used: ClassVar[list[str]] = []

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self._weight, self._bias = weight, bias

    @classmethod
    def load(cls, config: Any, prefix: str, weights: Weights, bias: bool) -> "Linear":
        names = [f"{prefix}.weight", *([f"{prefix}.bias"] if bias else [])]
        cls.used += names
        tensors = [weights.read(name) for name in names]
        return cls(tensors[0], tensors[1] if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self._weight, self._bias)


class OutputLayer:
    """Its `TensorParallelHead`, of the target."""

    @staticmethod
    def load(config: Any, prefix: str, weights: Weights) -> nn.Module:
        return nn.Identity()


@pytest.mark.parametrize("layers", [1, 2])
def test_its_own_heads_compute_the_exported_ones(
    tgi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    """By the way that it chooses for such a config: with an output layer for each head. Each tensor is used, and the logits at
    every place are ours."""
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", draft := medusa_draft(target, heads=HEADS, layers=layers))
    tensors, config = exported(head_plan(tmp_path, head, MEDUSA, "tgi", hub=True), tmp_path / "out")
    monkeypatch.setattr(Linear, "used", [])
    medusa = module_of(
        tgi / "layers" / "medusa.py",
        monkeypatch,
        {
            f"{PACKAGE}.utils.speculate": {"get_speculate": lambda: HEADS},
            f"{PACKAGE}.layers.linear": {"FastLinear": Linear},
            f"{PACKAGE}.layers.tensor_parallel": {
                "TensorParallelHead": OutputLayer,
                "TensorParallelColumnLinear": None,
            },
        },
    )
    parts = {"MedusaHeadV1": medusa.MedusaHeadV1, "MedusaHeadV2": None}
    chooser = module_of(
        tgi / "layers" / "speculative.py",
        monkeypatch,
        {f"{PACKAGE}.layers.medusa": parts, f"{PACKAGE}.layers.mlp": {"MLPSpeculatorHead": None}},
    )
    place = SimpleNamespace(speculator={"path": tmp_path / "out", "model_paths": ["medusa_lm_head.safetensors"]})
    model = chooser.SpeculativeHead.load(place, "lm_head", Weights())
    assert sorted(tensors) == sorted(Linear.used)
    states_nH = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    _, logits_nPV = model(states_nH)
    own = torch.stack([draft.logits(states_nH, place) for place in range(HEADS)], dim=1)
    torch.testing.assert_close(logits_nPV, own.detach(), rtol=1e-5, atol=1e-6)
    assert "architectures" not in config


def test_it_reads_our_keys_and_file(tgi: Path, tmp_path: Path) -> None:
    """Every key of the config and the file's name are in its code of loading; the revision of the target is main."""
    target = saved_target(tmp_path / "target")
    head = write_medusa(tmp_path / "head", medusa_draft(target))
    _, config = exported(head_plan(tmp_path, head, MEDUSA, "tgi"), tmp_path / "out")
    loading = strings_of(tgi / "models" / "__init__.py")
    read = loading | strings_of(tgi / "layers" / "medusa.py")
    assert [] == sorted(set(json.loads(json.dumps(config))) - read)
    assert {"medusa_lm_head.safetensors", "main"} <= loading


def test_a_drafted_token_is_accepted_where_the_sampled_one_is_the_same(tgi: Path) -> None:
    """As the examination counts greedy heads: the heads' argmax, and no probability of the draft."""
    text = (tgi / "utils" / "tokens.py").read_text()
    assert "speculative_ids = Greedy()(speculative_scores)" in text
    assert "_next_ids[:-1] == _speculated_ids" in text

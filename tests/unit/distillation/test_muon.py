"""Muon and AdamW as one optimizer."""

import copy
from typing import Any

import pytest
import torch

from pipeline.distillation import muon
from pipeline.distillation.muon import MuonWithAdamW
from pipeline.distillation.trained_head import TrainedHead
from tests.fakes import family_model, tiny_llama
from tests.heads import eagle3_draft, medusa_draft

IDS = torch.arange(8).view(2, 4)


def _optimizer(model: Any, iterations: int = 5) -> MuonWithAdamW:
    return MuonWithAdamW(model, 0.02, weight_decay=0.1, betas=(0.9, 0.95), newton_schulz_steps=iterations)


def _step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    model(input_ids=IDS, labels=IDS).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("at_once", [1, 10**6])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("iterations", [3, 5])
def test_each_weight_is_moved_by_its_own_rule(
    iterations: int, bf16: bool, tied: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to torch's Muon and AdamW one by one: hidden matrices by Muon, embedding, head and norms by AdamW."""
    monkeypatch.setattr(muon, "_AT_ONCE", at_once)
    monkeypatch.setattr(muon, "supports_bf16", lambda device: bf16)
    model = family_model("Llama", torch.float32, tie_word_embeddings=tied)
    expected = copy.deepcopy(model)
    ends = {id(expected.model.embed_tokens.weight), id(expected.lm_head.weight)}
    parts = [
        torch.optim.Muon([weight], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw", ns_steps=iterations)
        if weight.ndim == 2 and id(weight) not in ends
        else torch.optim.AdamW([weight], lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)
        for weight in expected.parameters()
    ]
    optimizer = _optimizer(model, iterations)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for own, other in zip(model.parameters(), expected.parameters(), strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        for part in (optimizer, *parts):
            part.step()

    before = family_model("Llama", torch.float32, tie_word_embeddings=tied)
    pairs = zip(before.parameters(), expected.named_parameters(), model.parameters(), strict=True)
    for start, (name, own), ours in pairs:
        # torch runs Newton-Schulz in bfloat16: ours differs by its rounding, in float32 and on some processors.
        leeway = 0.03 if own.ndim == 2 and id(own) not in ends else 1e-5
        moved = (own - start).norm()
        assert 0.01 < moved, name
        assert (own - ours).norm() < leeway * moved, name


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_matrices_are_orthogonalised_in_what_the_device_multiplies(
    bf16: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 on a device without bfloat16 units, which would emulate them."""
    monkeypatch.setattr(muon, "supports_bf16", lambda device: bf16)
    group = {"eps": 1e-7, "ns_coefficients": (3.4445, -4.775, 2.0315), "ns_steps": 5}

    assert [dtype] == [update.dtype for update in muon._orthogonal([torch.eye(4, 6)], group)]


def test_a_schedule_reaches_both() -> None:
    """At a learning rate of 0 no weight changes, also after loading a state."""
    model = family_model("Llama", torch.float32)
    optimizer = _optimizer(model)
    _step(model, optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = copy.deepcopy(model.state_dict())
    _step(model, optimizer)
    schedule.step()

    assert {0.0} == {group["lr"] for group in optimizer.param_groups}
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(before[name], weight, rtol=0, atol=0)


def test_its_state_is_all_there_is(tmp_path: Any) -> None:
    """Saved, loaded and continued: the same weights as without interruption."""
    model = family_model("Llama", torch.float32)
    optimizer = _optimizer(model)
    _step(model, optimizer)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "state.pt")
    _step(model, optimizer)
    other = family_model("Llama", torch.float32)
    weights, state = torch.load(tmp_path / "state.pt")
    other.load_state_dict(weights)
    again = _optimizer(other)
    again.load_state_dict(state)
    _step(other, again)

    for own, ours in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, ours, rtol=0, atol=0)


def test_what_is_frozen_stays() -> None:
    """As with adapters."""
    model = family_model("Llama", torch.float32)
    for weight in model.parameters():
        weight.requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    before = copy.deepcopy(model.state_dict())
    _step(model, _optimizer(model))

    assert {"model.layers.0.mlp.up_proj.weight"} == {
        name for name, weight in model.state_dict().items() if not torch.equal(before[name], weight)
    }


def test_learned_positions_are_an_embedding() -> None:
    """As in GPT-2: an embedding table, not a matrix for Muon."""
    model = family_model("Llama", torch.float32)
    model.model.positions = torch.nn.Embedding(8, 16)
    matrices, others = (
        {id(weight) for group in part.param_groups for weight in group["params"]} for part in _optimizer(model).parts
    )

    assert id(model.model.positions.weight) in others
    assert id(model.model.layers[0].mlp.up_proj.weight) in matrices


@pytest.mark.parametrize("make", [eagle3_draft, medusa_draft])
def test_the_output_layers_of_a_head_are_its_ends(make: Any) -> None:
    """They are moved by AdamW, as those of a model are; the head's other matrices by Muon."""
    draft = make(tiny_llama(0, vocabulary=24, hidden=32, layers=4))
    head = TrainedHead(draft.model, draft.states, 2)
    by_muon = {id(weight) for group in _optimizer(head).parts[0].param_groups for weight in group["params"]}
    ends = [weight for name, weight in head.head.named_parameters() if "lm_head" in name or "embed" in name]

    assert ends
    assert not by_muon & {id(weight) for weight in ends}
    assert by_muon

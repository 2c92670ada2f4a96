"""Heads that are made for a target: what is written is what is read, and the same on every machine."""

from pathlib import Path

import pytest
import torch

from pipeline.config.pair import HeadShape
from pipeline.drafts.head_config import kind_of, read_eagle3
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import default_layers, new_head, save_head
from pipeline.errors import UsageError
from pipeline.models.files import model_digest
from pipeline.speculation.target_states import TargetStates
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import family_model, stored_completion, tiny_llama

SHAPES = [HeadShape(kind="eagle3"), HeadShape(kind="medusa", places=3), HeadShape(kind="eagle3", layer="speculators")]


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        *((family, SHAPES[0]) for family in ("Llama", "Qwen3", "Mistral", "Qwen2")),
        ("Llama", SHAPES[1]),
        *((family, SHAPES[2]) for family in ("Llama", "Qwen3")),
    ],
)
def test_a_made_head_is_read_as_it_was_made(family: str, shape: HeadShape, tmp_path: Path) -> None:
    target = family_model(family, torch.float32)
    made = new_head(target, shape, seed=1)
    for name in ("one", "two"):
        save_head(new_head(target, shape, seed=1), tmp_path / name)
    read = load_head(kind_of(tmp_path / "one"), tmp_path / "one", TargetStates(target), 40)
    assert model_digest(tmp_path / "one") == model_digest(tmp_path / "two")
    assert str(tmp_path) not in (tmp_path / "one" / "config.json").read_text()
    for name, weight in made.state_dict().items():
        assert torch.equal(weight, read.model.state_dict()[name]), name


@pytest.mark.parametrize(("shape", "kind", "before"), [(SHAPES[0], "llama", False), (SHAPES[2], "qwen3", True)])
def test_an_eagle3_head_has_the_sizes_of_the_targets_layers(
    tmp_path: Path, shape: HeadShape, kind: str, before: bool
) -> None:
    """And no default of a library is left to whoever reads them: vLLM has none. EAGLE's own layer is Llama's."""
    target = family_model("Qwen3", torch.float32)
    save_head(new_head(target, shape, 1), tmp_path)
    head = read_eagle3(tmp_path)
    layer, own = head.layer, (target.config.num_key_value_heads, target.config.head_dim)
    assert (kind, *own) == (layer["model_type"], layer["num_key_value_heads"], layer["head_dim"])
    assert before == head.norm_before_residual
    assert {"hidden_act", "attention_bias", "mlp_bias", "rope_parameters", "rms_norm_eps"} <= layer.keys()


def test_untrained_medusa_heads_say_the_targets_own_next_token() -> None:
    target = tiny_llama(0, vocabulary=24, hidden=32, layers=2, dtype=torch.float32)
    made = new_head(target, SHAPES[1], 0)
    batch = PaddedBatch([stored_completion([3, 4, 5], [6, 7])])
    states = TargetStates(target)
    state_H = states.features(batch, [-1])[-1][0, 2]
    with torch.inference_mode():
        logits_V = made.logits(state_H[None], 2, 24)[0]  # type: ignore[call-arg, arg-type]
        assert torch.allclose(logits_V, target(batch.ids_BT).logits[0, 2], atol=1e-5)


@pytest.mark.parametrize(("layers", "expected"), [(32, (2, 16, 29)), (8, (2, 4, 5)), (6, (2, 4, 6)), (2, (1, 2))])
def test_the_layers_that_are_read_by_default(layers: int, expected: tuple[int, ...]) -> None:
    """Those of EAGLE's authors, where they are distinct."""
    assert expected == default_layers(tiny_llama(0, layers=layers))


def test_a_target_of_another_form_has_no_eagle3_head() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    target = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=2, n_positions=64))
    with pytest.raises(UsageError, match=r"pair.draft.head.kind = eagle3: the config of the target has no \w+"):
        new_head(target, SHAPES[0], 0)


@pytest.mark.parametrize(("layers", "expected"), [((1, 2), 2), ((1, 2, 3), None), ((0, 1, 2, 3), 4)])
def test_how_many_states_are_read_is_written_where_it_is_not_three(
    layers: tuple[int, ...], expected: int | None, tmp_path: Path
) -> None:
    """vLLM gives a head of Llama's layers three, whatever ids its config has."""
    save_head(new_head(tiny_llama(0, layers=3), HeadShape(kind="eagle3", layer_ids=layers), 1), tmp_path)
    assert expected == read_eagle3(tmp_path).layer.get("num_aux_hidden_states")


@pytest.mark.parametrize("layers", [(), (3, 2), (2, 2)])
def test_layers_out_of_order_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="engines read them ascending and once each"):
        HeadShape(kind="eagle3", layer_ids=layers)


def test_a_layer_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"reads hidden states \[1, 5\] of a target of 2 layers"):
        new_head(tiny_llama(0, layers=2), HeadShape(kind="eagle3", layer_ids=(1, 5)), 0)

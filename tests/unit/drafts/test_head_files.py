"""Files of heads that other programs wrote: read as engines do, or refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.drafts.eagle3 import Eagle3Draft
from pipeline.drafts.eagle3_model import load_eagle3
from pipeline.drafts.head_config import kind_of, read_eagle3, trainable_head
from pipeline.drafts.head_tensors import head_facts
from pipeline.drafts.kinds import EAGLE3, MEDUSA, PLAIN
from pipeline.drafts.loading import load_head
from pipeline.drafts.made_heads import save_head
from pipeline.drafts.medusa import MedusaDraft
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.shape import read_shape
from pipeline.speculation.drafter import LoadedDraft
from pipeline.speculation.settings import Sampling
from pipeline.speculation.teacher_forced import PaddedBatch
from tests.fakes import saved_tiny_llama, stored_completion, tiny_llama
from tests.heads import eagle3_draft, eagle3_layer, medusa_draft, write_eagle3, write_medusa

VOCABULARY = 24


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=4)


def _load(directory: Path, target: Any, made: LoadedDraft) -> LoadedDraft:
    assert made.states is not None
    return load_head(kind_of(directory), directory, made.states, target.config.vocab_size)


def _values(draft: LoadedDraft) -> list[float]:
    batch = PaddedBatch([stored_completion([3, 4, 5], [6, 7, 1, 2]), stored_completion([8, 9], [1, 20, 11])])
    assert draft.states is not None
    found = draft.examine(batch, Sampling(), 3, draft.states.features(batch, draft.layers))
    return [float(value) for values in found.values for value in values.flatten()]


@pytest.mark.parametrize("layout", ["speculators", "eagle"])
@pytest.mark.parametrize("kept", [None, 15])
def test_a_head_is_the_same_from_each_layout(tmp_path: Path, target: Any, layout: str, kept: int | None) -> None:
    made = eagle3_draft(target, kept=kept)
    loaded = _load(write_eagle3(tmp_path / "head", made, layout), target, made)
    assert (EAGLE3, pytest.approx(_values(made))) == (loaded.kind, _values(loaded))


def test_medusa_heads_are_the_same_from_their_file(tmp_path: Path, target: Any) -> None:
    made = medusa_draft(target, layers=2)
    loaded = _load(write_medusa(tmp_path / "heads", made), target, made)
    assert (MEDUSA, 3, pytest.approx(_values(made))) == (loaded.kind, loaded.longest, _values(loaded))


def test_a_model_is_a_plain_draft(tmp_path: Path) -> None:
    assert kind_of(saved_tiny_llama(tmp_path)) == PLAIN


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"architectures": ["EagleLlamaForCausalLM"]}, "EagleLlamaForCausalLM"),
        ({"model_type": "eagle", "architectures": ["EAGLE"]}, "eagle"),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "DFlashDraftModel"),
        ({"model_type": "mlp_speculator"}, "mlp_speculator"),
        ({"model_type": "deepseek_mtp"}, "deepseek_mtp"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path: Path, config: dict[str, Any], what: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnderstudyError, match=f"a draft of the kind {what} cannot be examined exactly yet"):
        kind_of(tmp_path)


def test_a_vision_model_of_the_same_name_is_none(tmp_path: Path) -> None:
    config = {"model_type": "eagle_2_5_vl", "architectures": ["Eagle2_5_VLForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kind_of(tmp_path) == PLAIN


def test_layers_that_are_not_stated_are_those_of_engines(tmp_path: Path) -> None:
    """2, the middle, and the third from the end."""
    target = tiny_llama(0, vocabulary=VOCABULARY, hidden=32, layers=8)
    made = eagle3_draft(target)
    written = write_eagle3(tmp_path / "head", made, "eagle", eagle_aux_hidden_state_layer_ids=None)
    assert [2, 4, 5] == list(_load(written, target, made).layers)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"speculators_model_type": "dflash"}, r"a draft of the kind dflash cannot be examined exactly yet"),
        ({"speculators_model_type": "peagle"}, r"a draft of the kind peagle cannot be examined exactly yet"),
        ({"parallel_drafting": True}, r"a draft of the kind P-EAGLE cannot be examined exactly yet"),
        (
            {"norm_before_residual": None},
            r"norm_before_residual is missing; speculators takes it as false and vLLM as true",
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [4, 3, 1]},
            r"is \[4, 3, 1\]; engines read these layers in ascending order",
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 3]},
            r"engines read these layers in ascending order and once each",
        ),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]},
            r"reads hidden states \[1, 3, 5\] of a target of 4 layers, which has states 0 to 4",
        ),
        ({"eagle_config": {"use_aux_hidden_state": False}}, r"a head of EAGLE-1 or 2, which is not supported"),
        ({"transformer_layer_config": None}, r"transformer_layer_config is missing"),
        ({"norm_before_fc": True, "fc_norm": True}, r"norm_before_fc and fc_norm exclude each other"),
        ({"norm_before_fc": True}, r"1 tensors of the head are in no file, such as input_norm.weight"),
        ({"draft_vocab_size": 20}, r"the head has 20 of 24 tokens, and no file has d2t"),
    ],
)
def test_a_config_that_engines_read_otherwise_is_refused(
    tmp_path: Path, target: Any, changes: dict[str, Any], line: str
) -> None:
    made = eagle3_draft(target)
    with pytest.raises(UnderstudyError, match=line):
        _load(write_eagle3(tmp_path / "head", made, **changes), target, made)


def test_layers_of_another_architecture_are_refused(tmp_path: Path, target: Any) -> None:
    made, layer = eagle3_draft(target), eagle3_layer(target, "gemma2")
    with pytest.raises(UnderstudyError, match=r"layers of the type 'gemma2' are not those of an EAGLE-3 head"):
        _load(write_eagle3(tmp_path / "head", made, transformer_layer_config=layer), target, made)


def _without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def _with(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_without("d2t"), r"the head has 15 of 24 tokens, and no file has d2t"),
        (_with("d2t", torch.zeros(15, dtype=torch.long) + 20), r"d2t and t2d do not name 15 different tokens of 24"),
        (_with("d2t", torch.zeros(15, dtype=torch.long)), r"d2t and t2d do not name 15 different tokens of 24"),
        (_without("fc.weight"), r"1 tensors of the head are in no file, such as fc.weight"),
        (_with("mask_hidden", torch.zeros(4)), r"1 tensors of its files would not be used, such as mask_hidden"),
        (_with("norm.weight", torch.zeros(4)), r"norm.weight has the shape \(4,\), and the configs .* make it \(32,\)"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, target: Any, change: Callable[[dict[str, torch.Tensor]], None], line: str
) -> None:
    made = eagle3_draft(target, kept=15)
    written = write_eagle3(tmp_path / "head", made)
    tensors = load_file(written / "model.safetensors")
    change(tensors)
    save_file(tensors, written / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnderstudyError, match=line):
        _load(written, target, made)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"num_heads": None}, r"num_heads is missing"),
        ({"num_heads": 4}, r"2 tensors of the head are in no file, such as blocks.3.layers.0.weight"),
        ({"num_heads": 2}, r"2 tensors of its files would not be used, such as blocks.2.layers.0.weight"),
        ({"hidden_size": 16}, r"made for a target of hidden size 16 and 24 tokens, and this one has 32 and 24"),
        ({"medusa_fc_bias": True}, r"3 tensors of the head are in no file, such as blocks.0.layers.0.bias"),
        (
            {"truncated_vocab_size": 12},
            r"truncated_vocab_size in its config.json and token_map in its files belong together",
        ),
    ],
)
def test_medusa_heads_that_do_not_fit_are_refused(
    tmp_path: Path, target: Any, changes: dict[str, Any], line: str
) -> None:
    made = medusa_draft(target)
    with pytest.raises(UnderstudyError, match=line):
        _load(write_medusa(tmp_path / "heads", made, **changes), target, made)


def test_a_head_of_another_target_is_refused(tmp_path: Path, target: Any) -> None:
    other = tiny_llama(0, vocabulary=VOCABULARY, hidden=16, layers=4)
    written = write_eagle3(tmp_path / "head", eagle3_draft(other))
    with pytest.raises(UnderstudyError, match=r"fc.weight has the shape .* name the target that it was made for"):
        _load(written, target, eagle3_draft(target))


def test_the_config_is_read_from_json_of_any_writer(tmp_path: Path) -> None:
    """Medusa's own repository names the number of heads otherwise, and no model type."""
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 1}))
    assert kind_of(tmp_path) == MEDUSA


def test_both_kinds_are_loaded_drafts(target: Any) -> None:
    drafts: list[LoadedDraft] = [eagle3_draft(target), medusa_draft(target)]
    assert [Eagle3Draft, MedusaDraft] == [type(one) for one in drafts]


def test_what_config_json_does_not_state_is_the_default_of_its_type(target: Any, tmp_path: Path) -> None:
    """A head's facts, as its layer is built: key heads are as many as heads, and a head's width divides the hidden size."""
    source, head = saved_tiny_llama(tmp_path / "target"), write_eagle3(tmp_path / "head", eagle3_draft(target))
    config = json.loads((head / "config.json").read_text())
    for name in ("head_dim", "num_key_value_heads"):
        del config["transformer_layer_config"][name]
    (head / "config.json").write_text(json.dumps(config))
    facts = head_facts(head, head, read_shape(source), "float32")

    assert 2 * 4 * (32 // 4) * 4 == facts["cache_bytes_per_token"]  # one layer, 4 heads, float32


def test_which_heads_are_trained_further(target: Any, tmp_path: Path) -> None:
    part = write_eagle3(tmp_path / "eagle3", eagle3_draft(target, kept=10))
    trainable_head(part)
    head = write_medusa(tmp_path / "medusa", medusa_draft(target))
    trainable_head(head)
    config = json.loads((head / "config.json").read_text()) | {"original_lm_head": True}
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UsageError, match=r"Medusa heads with one output layer for all are judged here .* not trained further"
    ):
        trainable_head(head)


def test_a_head_with_a_part_of_the_vocabulary_is_written_with_its_tokens(target: Any, tmp_path: Path) -> None:
    """As a training leaves it: the same logits, and the maps that engines read."""
    draft = eagle3_draft(target, kept=10)
    save_head(draft.model, tmp_path / "head")
    again = load_eagle3(tmp_path / "head", read_eagle3(tmp_path / "head"), target, target.dtype, torch.device("cpu"))
    hidden = torch.randn(3, target.config.hidden_size, dtype=target.dtype)
    assert torch.equal(draft.logits(hidden, 0), again.over_target(again.logits(hidden), draft.vocabulary))
    assert {"d2t", "t2d"} <= load_file(tmp_path / "head" / "model.safetensors").keys()

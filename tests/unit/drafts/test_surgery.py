"""Drafts made from a target's layers, and drafts extended by new tokens."""

from typing import Any

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from pipeline.drafts.base_draft import draft_of_layers
from pipeline.drafts.surgery import added_tokens, extend_vocabulary, gained_tokens, prune_layers
from pipeline.errors import UsageError
from pipeline.models.model_json import read_config
from pipeline.models.tokenizers import check_same_family
from tests.fakes import family_model, tiny_llama, tiny_tokenizer
from tests.unit.models.test_models import MERGES, _bpe

IDS = torch.arange(6)[None]


def _logits(model: Any, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(IDS, **more).logits
    return logits


@pytest.mark.parametrize(
    ("layers", "expected"), [(1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (5, [0, 1, 2, 3, 4]), ((1, 3), [1, 3])]
)
def test_kept_layers_are_the_targets_own(layers: Any, expected: list[int]) -> None:
    """The draft computes what the target does without its other layers, also with a cache."""
    target = tiny_llama(layers=5)
    draft, chosen = prune_layers(target, layers)
    own = tiny_llama(layers=5)
    own.model.layers = torch.nn.ModuleList([own.model.layers[layer] for layer in expected])
    own.config.num_hidden_layers = len(expected)
    cached = draft(IDS[:, :4], use_cache=True)

    assert expected == chosen
    assert len(expected) == draft.config.num_hidden_layers
    torch.testing.assert_close(_logits(own, use_cache=False), _logits(draft, use_cache=False))
    with torch.no_grad():
        rest = draft(IDS[:, 4:], past_key_values=cached.past_key_values).logits
    torch.testing.assert_close(_logits(draft)[:, 4:], rest)


def test_what_the_config_says_of_each_layer_goes_with_it(tmp_path: Any) -> None:
    """Alternating sliding and full attention: each kept layer keeps its type, also after saving."""
    target = family_model("Gemma2", torch.float32, head_dim=8)
    draft, _ = prune_layers(target, (1,))
    draft.save_pretrained(tmp_path)

    assert [target.config.layer_types[1]] == draft.config.layer_types
    assert draft.config.layer_types == type(draft).from_pretrained(tmp_path).config.layer_types


def test_layers_of_a_multimodal_target_are_those_of_its_decoder(tmp_path: Any) -> None:
    """Their number stands in a section of the config."""
    text = family_model("Gemma3Text", torch.float32, head_dim=8).config.to_dict()
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    sizes = {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision | sizes, mm_tokens_per_image=4)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "target")
    notes = draft_of_layers(tmp_path / "target", 1, tiny_tokenizer(), "float32", tmp_path / "draft", False)

    assert ["the draft is the target's layers 0 of 2"] == notes
    assert 1 == read_config(tmp_path / "draft").decoder.num_hidden_layers


@pytest.mark.parametrize("layers", [3, (0, 2), ()], ids=str)
def test_layers_that_are_not_there_are_named(layers: Any) -> None:
    """One line with what the target has."""
    with pytest.raises(UsageError, match=r"the target has 2 layers, 0 to 1"):
        prune_layers(tiny_llama(layers=2), layers)


def test_gained_tokens_are_those_at_the_end() -> None:
    """Only if nothing else differs: tokens appended at the end, with the same merges and order."""
    target, draft = _bpe(MERGES), _bpe(MERGES)
    target.add_tokens(["<tool>", "<think>"])
    other = _bpe(MERGES[::-1])
    other.add_tokens(["<tool>", "<think>"])

    assert [len(draft), len(draft) + 1] == added_tokens(target, draft)
    assert [] == added_tokens(draft, draft)
    assert [] == added_tokens(draft, target)
    assert [] == added_tokens(other, draft)
    assert [len(draft)] == added_tokens(
        target, draft, len(draft) + 1
    )  # the target's logits have no column for the other


def test_a_target_needs_no_draft_with_tokens_that_it_cannot_read() -> None:
    """The tokenizers of some text models have a token for images: neither model learns it, and no row is added for it."""
    target, draft = _bpe(MERGES), _bpe(MERGES)
    target.add_tokens(["<image>"])

    assert [] == gained_tokens(target, draft, len(draft))
    assert [] == check_same_family(target, draft, len(draft))
    with pytest.raises(UsageError, match="token '<image>' is id"):
        check_same_family(target, draft)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("padding", [0, 4])
def test_an_extended_draft_keeps_its_logits_of_old_tokens(tied: bool, padding: int) -> None:
    """Logits of old tokens are unchanged; new rows are the mean of the old ones, in embedding and head, also if the
    matrix was wide enough before."""
    model = family_model("Llama", torch.float32, tie_word_embeddings=tied)
    width = model.config.vocab_size
    known = width - padding
    before = _logits(model)
    extend_vocabulary(model, range(known, known + 3))
    after = _logits(model)

    assert max(width, known + 3) == model.config.vocab_size == after.shape[-1]
    torch.testing.assert_close(before[..., :known], after[..., :known])
    for weight in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
        torch.testing.assert_close(weight[:known].mean(0).expand(3, -1), weight[known : known + 3])


def test_layers_of_other_shapes_are_refused() -> None:
    """If the first layer differs from the others, layers cannot be renumbered; one line, no traceback."""
    target = tiny_llama(layers=3)
    target.model.layers[2].mlp.up_proj = torch.nn.Linear(16, 40, bias=False)
    with pytest.raises(UsageError, match="cannot be renumbered"):
        prune_layers(target, 2)


def test_layers_of_a_quantized_target_are_refused() -> None:
    """Quantized weights cannot be trained."""
    target = tiny_llama(layers=3)
    target.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(UsageError, match="the target is quantized"):
        prune_layers(target, 2)

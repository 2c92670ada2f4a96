"""The size of a draft with the target's vocabulary, and what layers of the target would cost instead."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.drafts.vocabulary_size import Size, resized, size_note
from tests.fakes import family_model


def _saved(place: Path, **shape: Any) -> Path:
    family_model("Llama", torch.float32, **shape).save_pretrained(place)
    return place


@pytest.mark.parametrize("tied", [True, False])
def test_the_size_is_that_of_the_resized_model(tmp_path: Path, tied: bool) -> None:
    """A pass does not read the whole of an embedding that is not the output layer."""
    draft = _saved(tmp_path / "draft", vocab_size=40, tie_word_embeddings=tied)
    target = _saved(tmp_path / "target", vocab_size=90, hidden_size=48)
    model = family_model("Llama", torch.float32, vocab_size=40, tie_word_embeddings=tied)
    model.resize_token_embeddings(90, mean_resizing=False)
    whole = sum(one.numel() for one in model.parameters())

    assert Size(whole, whole if tied else whole - 90 * 24) == resized(draft, target)


def test_layers_of_the_target_are_named_where_they_are_cheaper(tmp_path: Path) -> None:
    """As many as read no more; otherwise what one of them would read."""
    draft = _saved(tmp_path / "draft", vocab_size=40, num_hidden_layers=2)
    small = _saved(tmp_path / "small", vocab_size=90, num_hidden_layers=6)
    large = _saved(tmp_path / "large", vocab_size=90, hidden_size=96)

    assert "cheaper is pair.draft: {source: target, layers: 2}" in size_note(draft, small)
    assert "; one of the target's layers as a draft would read " in size_note(draft, large)
    whole = resized(draft, large).whole
    assert f"with rows for the 90 columns of the target's logits the draft has {whole:,} parameters in place of " in (
        size_note(draft, large)
    )


def test_of_experts_a_pass_reads_a_part(tmp_path: Path) -> None:
    """So nothing is said of layers of such a target."""
    draft = _saved(tmp_path / "draft", vocab_size=40)
    family_model("Mixtral", torch.float32, vocab_size=90).save_pretrained(tmp_path / "experts")

    said = size_note(draft, tmp_path / "experts")
    assert "with rows for the 90 columns" in said
    assert "layers" not in said

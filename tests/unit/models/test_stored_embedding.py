"""The embedding of a model, read alone."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.models.stored_embedding import stored_embedding
from tests.fakes import family_model

NAME = "model.embed_tokens.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "name"), [("Llama", NAME), ("GPT2", "transformer.wte.weight")])
def test_it_is_that_of_the_model(tmp_path: Path, family: str, name: str, dtype: torch.dtype) -> None:
    """Whatever the prefix in the files is, and with another table of the same size in a layer that predicts several tokens."""
    model = family_model(family, dtype, vocab_size=40)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    leaf = name.split(".", 1)[1]
    tensors[leaf] = tensors.pop(name)
    tensors[f"model.layers.9.{leaf}"] = torch.zeros_like(tensors[leaf])
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})

    assert torch.equal(model.get_input_embeddings().weight.float(), stored_embedding(tmp_path))


def test_a_table_of_other_numbers_is_not_read(tmp_path: Path) -> None:
    """Quantized, or of another shape."""
    family_model("Llama", torch.float32, vocab_size=40).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for table in (torch.zeros(40, 24, dtype=torch.int8), torch.zeros(40, 12)):
        save_file(tensors | {NAME: table}, tmp_path / "model.safetensors", {"format": "pt"})
        assert "the embedding in the target's files is no tensor of floats" == stored_embedding(tmp_path)

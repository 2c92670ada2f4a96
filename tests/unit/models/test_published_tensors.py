"""Tensors of published checkpoints, by the names in their index files (layers and experts by `#`): each family loads under these
names, and with what stands beside them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3Config, GraniteMoeConfig, Qwen3_5MoeConfig

from pipeline.models.loading import load_model
from tests.architectures import FAMILIES, tiny_model

PUBLISHED = json.loads((Path(__file__).parents[2] / "fixtures" / "published_tensors.json").read_text())
CPU = torch.device("cpu")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_TEXT: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "pad_token_id": None,
}  # fmt: skip
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
# Names that transformers gives these tensors where it writes them itself.
_RENAMED = {
    "Qwen 3.5 MoE": ("model.", "model.language_model."),
    "Bloom": ("transformer.", ""),
    "Gemma 3, images": ("vision_tower.", "vision_tower.vision_model."),
}


def _config(family: str) -> Any:
    """Of a tiny model, as it is published, where `tests/architectures.py` has no such family."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if family == "Granite MoE":
        return GraniteMoeConfig(**_TEXT, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True)
    if family == "Gemma 3, images":
        vision = _VISION | {"image_size": 16, "patch_size": 4, "vision_use_head": False}
        return Gemma3Config(text_config=_TEXT, vision_config=vision, mm_tokens_per_image=4)
    linear = {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    kinds = {"layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 32}
    return Qwen3_5MoeConfig(text_config=_TEXT | experts | linear | kinds, vision_config={"depth": 1})


_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama, biases": ("Llama", {"attention_bias": True}),
    "Falcon, two norms": ("Falcon", {"new_decoder_architecture": True, "tie_word_embeddings": False}),
}


def _model(family: str) -> Any:
    name, settings = _SETTINGS.get(family, (family, {}))
    return (
        tiny_model(name, **settings) if name in FAMILIES else AutoModelForCausalLM.from_config(_config(family)).eval()
    )


@pytest.mark.long
@pytest.mark.parametrize("whose", PUBLISHED)
def test_the_tensors_of_a_published_checkpoint_are_taken(whose: str, tmp_path: Path) -> None:
    """Each by its published name, and what text does not need is left out: the same logits."""
    family, names, beside = PUBLISHED[whose].values()
    model = _model(family)
    model.save_pretrained(tmp_path)
    if family in ("Qwen 3.5 MoE", "Gemma 3, images"):  # which transformers writes as the config of a text model
        _config(family).save_pretrained(tmp_path)
    file, (before, after) = tmp_path / "model.safetensors", _RENAMED.get(family, ("", ""))
    stored = {
        after + name.removeprefix(before) if name.startswith(before) else name: weight
        for name, weight in load_file(file).items()
    }
    assert set(names) == {_NUMBER.sub("#", f".{name}")[1:] for name in stored}
    further = {name.replace("#", "0"): torch.ones(2, 2) for name in beside}
    save_file(stored | further, file, {"format": "pt"})
    ids_1T = torch.arange(8)[None]
    with torch.inference_mode():
        loaded = load_model(tmp_path, "float32", CPU)
        torch.testing.assert_close(loaded(input_ids=ids_1T).logits, model(input_ids=ids_1T).logits)

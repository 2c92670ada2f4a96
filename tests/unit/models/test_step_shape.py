"""What of a model decides the seconds of a step."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.step_shape import step_shape

CONFIG = {"model_type": "llama", "num_attention_heads": 2, "hidden_act": "silu", "use_cache": True}
TENSORS = {"a": ("F32", [4, 2]), "b": ("F32", [2])}
BYTES = {"F32": 4, "BF16": 2, "I8": 1}


def _model(place: Path, config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]], fill: int = 0) -> str | None:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + BYTES[dtype] * (shape[0] * (shape[1] if len(shape) > 1 else 1))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes([fill]) * end)
    return step_shape(place)


@pytest.mark.parametrize(
    ("config", "tensors", "fill", "is_equal"),
    [
        ({}, {}, 7, True),  # other weights
        ({"use_cache": False, "transformers_version": "9"}, {}, 0, True),  # of no effect
        ({}, {"a": ("BF16", [4, 2])}, 0, True),  # both are loaded in the dtype of the run
        ({"num_attention_heads": 1}, {}, 0, False),
        ({"model_type": "qwen3"}, {}, 0, False),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, {}, 0, False),
        ({}, {"a": ("I8", [4, 2])}, 0, False),
        ({}, {"a": ("F32", [2, 4])}, 0, False),
        ({}, {"c": ("F32", [2])}, 0, False),  # one more layer
    ],
)
def test_a_shape_is_what_costs_time(
    config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]], fill: int, is_equal: bool, tmp_path: Path
) -> None:
    """Sizes and form of the weights, and what of the config changes a pass; not their values."""
    before = _model(tmp_path / "before", CONFIG, TENSORS)
    assert before is not None
    assert is_equal == (before == _model(tmp_path / "after", CONFIG | config, TENSORS | tensors, fill))


def test_where_there_is_no_model_there_is_no_shape(tmp_path: Path) -> None:
    """Nor where its weights are damaged: whoever loads them says so."""
    assert step_shape(tmp_path) is None
    _model(tmp_path, CONFIG, TENSORS)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    assert step_shape(tmp_path) is None

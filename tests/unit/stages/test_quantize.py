"""The quantize stage where memory runs out."""

from pathlib import Path

import pytest
import torch

import stages.quantize
from pipeline.config.loading import parse_config
from pipeline.errors import UnderstudyError
from tests.contexts import stage_context


def test_out_of_memory_names_the_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No batch helps where the weights do not fit."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    reference = {"target": {"source": "reference"}, "draft": {"source": "reference"}}
    config = parse_config({"name": "t", "pair": reference, "corpus": {"sources": [{"path": "reference"}]}}, "test")
    for name in ("find_draft", "read_pair"):
        monkeypatch.setattr(stages.quantize, name, lambda *_: [])
    monkeypatch.setattr(stages.quantize, "quantize", full)
    inputs = dict.fromkeys(("draft", "completions", "shared"), tmp_path)
    context = stage_context(config, "quantize/int8", tmp_path, tmp_path / "out", inputs=inputs)
    with pytest.raises(
        UnderstudyError, match=r"^quantize/int8: out of memory; remove int8 from quantize\.variants, or"
    ):
        stages.quantize.run(context)

"""What is made out of a model and saved is that model; what cannot be saved is found before it is paid for."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from pipeline.drafts.base_draft import draft_of_layers, fitting_draft
from pipeline.errors import UnderstudyError, UsageError
from pipeline.export.widths import resize_rows
from pipeline.models.derived import check_derived, computed, distance, prove_saving
from pipeline.models.loading import load_model
from pipeline.models.saving import save_model
from pipeline.quantization.block_sizes import impossible_variants
from pipeline.quantization.variants import quantize
from tests.architectures import tiny_model
from tests.fakes import change_json, tiny_llama, tiny_tokenizer

CPU = torch.device("cpu")
VARIANTS = ("int8", "int4", "fp8")
PLACES = (("temporary", "understudy-model"), ("work", "saving"))


def _tied_by_name(path: Path, hidden: int = 16) -> Path:
    """A head of its own, and a config that ties it to the embedding."""
    tiny_llama(3, hidden=hidden, dtype=torch.float32, spread=0.1).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    change_json(path / "config.json", tie_word_embeddings=True)
    return path


def _logits(path: Path, dtype: str = "float32") -> torch.Tensor:
    return computed(load_model(path, dtype, CPU), range(16)).logits_TV


def test_layers_of_a_target_keep_its_head(tmp_path: Path) -> None:
    """Of all layers the draft is the target."""
    target = _tied_by_name(tmp_path / "target")
    draft_of_layers(target, [0, 1], tiny_tokenizer(), "float32", tmp_path / "draft", False)
    assert distance(_logits(target), _logits(tmp_path / "draft")) < 1e-5


def test_rows_for_gained_tokens_leave_the_others(tmp_path: Path) -> None:
    """In the embedding and in a head that a config says is tied."""
    draft, more = _tied_by_name(tmp_path / "draft"), tiny_tokenizer()
    more.add_tokens(["<tool>", "<think>"])
    out, _ = fitting_draft(draft, more, len(more), "float32", tmp_path / "out", False)
    assert out != draft
    assert distance(_logits(draft), _logits(out)) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_of_a_model_with_a_tied_flag_is_as_far_as_rounding(tmp_path: Path, variant: Any) -> None:
    """And names the share of the parameters that it quantized: 14 matrices, and for two of them the head."""
    source = _tied_by_name(tmp_path / "draft", hidden=256)
    sizes = quantize(source, variant, tmp_path / "out", CPU).sizes
    assert distance(_logits(source, "bfloat16"), _logits(tmp_path / "out", "bfloat16")) < 0.6  # unrelated: 1.4
    assert (0.95 if variant == "fp8" else 0.98) < sizes["quantized_share"] < 1


def test_coarse_rounding_is_no_other_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large weight in each block of 64, here of an input that is 0, takes the others to 0: that is for the recovery
    training, and no fault. A variant that is not its rounded weights is one."""
    model = tiny_llama(3, hidden=64, dtype=torch.float32, spread=0.1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight[:, ::64] *= 60
                weight[::64] = 0
            elif "embed" in name:
                weight[:, 0] = 0
    model.save_pretrained(tmp_path / "draft")
    made = quantize(tmp_path / "draft", "int4", tmp_path / "out", CPU, text=[3, 1, 4, 1, 5])
    assert 14 == len([name for name in made.layers if "proj" in name])
    assert distance(_logits(tmp_path / "draft", "bfloat16"), _logits(tmp_path / "out", "bfloat16")) > 1
    monkeypatch.setattr("pipeline.quantization.variants.round_weights", lambda *_: None)
    with pytest.raises(
        UnderstudyError, match=r"what was saved is another model .* remove int4 from quantize\.variants"
    ):
        quantize(tmp_path / "draft", "int4", tmp_path / "again", CPU, text=[3, 1, 4, 1, 5])


@pytest.mark.parametrize("width", [40, 31])
def test_another_width_leaves_the_logits(tmp_path: Path, width: int) -> None:
    """Of a model whose config does not say what it computes."""
    source = _tied_by_name(tmp_path / "draft")
    before = _logits(source)
    assert resize_rows(source, 30, width)
    assert distance(before[:, :30], _logits(source)[:, :30]) < 1e-5


def test_another_model_is_told(tmp_path: Path) -> None:
    """By logits that differ by more than what was made of it may cost."""
    save_model(tiny_llama(1, dtype=torch.float32), tmp_path)
    other = computed(tiny_llama(2, dtype=torch.float32))
    with pytest.raises(UnderstudyError, match=r"x: what was saved is another model .* logits differ by 1\."):
        check_derived(other, tmp_path, "float32", CPU, False, "x", within=0.5)


def test_experts_in_one_tensor_are_not_left_out_in_silence(tmp_path: Path) -> None:
    """A variant called int4 of which most bytes were bf16."""
    tiny_model("Qwen 3 MoE", hidden_size=64, moe_intermediate_size=64).save_pretrained(tmp_path)
    reasons = impossible_variants(tmp_path)
    assert set(VARIANTS) == set(reasons)
    for variant in ("int8", "int4"):
        assert "mlp.experts." in reasons[variant]
        with pytest.raises(UnderstudyError, match="are in no linear layer"):
            quantize(tmp_path, variant, tmp_path / variant, CPU)


@pytest.mark.parametrize(
    "generation",
    [
        {"temperature": 0.6, "top_p": 0.9},
        {"num_beams": 1, "early_stopping": True},
        {"top_k": 50, "typical_p": 0.5},
    ],
    ids=str,
)
def test_a_generation_config_that_cannot_be_saved_is_not_the_drafts(tmp_path: Path, generation: dict[str, Any]) -> None:
    """transformers loads it and refuses to save it; the draft's has tokens only."""
    model = tiny_llama(1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | {"do_sample": False, "eos_token_id": 2}))
    draft = load_model(tmp_path, "float32", CPU)
    prove_saving(draft, "float32", False, "draft", tmp_path)
    save_model(draft, tmp_path / "draft", stop_tokens=[2, 3], pad_token=0)
    found = GenerationConfig.from_pretrained(tmp_path / "draft")
    assert ([2, 3], 0, None) == (found.eos_token_id, found.pad_token_id, found.temperature)


def test_what_is_written_for_a_trial_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial save goes to the stage's own directory; links to a model's files, beside which layers on disk may lie, go to the
    temporary one. What a killed process left in either is removed by the next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    left = [tmp_path / place / f".{name}.gone-0-partial.partial" for place, name in PLACES]
    for path in left:
        path.mkdir(parents=True)
        (path / "layer").write_text("")
        os.utime(path, (0, 0))
    model = tiny_llama(1, dtype=torch.float32)
    prove_saving(model, "float32", False, "d", tmp_path / "work")
    assert [] == [path for path in left if path.exists()]
    assert {"temporary": [], "work": []} == {place: list((tmp_path / place).iterdir()) for place, _ in PLACES}


def test_a_model_that_cannot_be_saved_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line: not after the generation."""
    model = tiny_llama(1, dtype=torch.float32)

    def broken(*_: object) -> None:
        raise NotImplementedError("no way back")

    with monkeypatch.context() as patch:
        patch.setattr(model, "save_pretrained", broken)
        with pytest.raises(UnderstudyError, match=r"d: it is loaded and cannot be saved.*: no way back; correct"):
            prove_saving(model, "float32", False, "d", tmp_path)


def test_a_draft_made_anew_from_its_config_has_the_targets_weights() -> None:
    """A config that ties what differs, which no loading has corrected."""
    from pipeline.drafts.surgery import prune_layers

    target = tiny_llama(1, dtype=torch.float32)
    target.config.tie_word_embeddings = True
    with pytest.raises(UsageError, match=r"made anew from its config\.json has another"):
        prune_layers(target, 1)

"""Checkpoints as public bug reports describe them: used as what they are, or refused with what is wrong and what to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4TextConfig

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models import model_json
from pipeline.models.built import empty_model, load_config
from pipeline.models.files import model_digest, tokenizer_digest
from pipeline.models.loading import load_model, load_tokenizer
from pipeline.models.shape import read_shape
from pipeline.models.tensor_ledger import missing_member
from pipeline.models.tokenizers import never_emitted, other_template
from pipeline.speculation.choice import check_logits, proved_way
from pipeline.store.parsing import Format
from tests.architectures import FAMILIES, VOCABULARY, tiny_model
from tests.fakes import add_tensors, change_json, tiny_llama, tiny_tokenizer

CPU = torch.device("cpu")
IDS = torch.arange(12)[None]


@torch.inference_mode()
def _logits(model: Path) -> torch.Tensor:
    found: torch.Tensor = load_model(model, "float32", CPU)(input_ids=IDS).logits
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"torch_dtype": "float8_e4m3fn"},
        {"dtype": None, "torch_dtype": None},
        {"quantization_config": None},
        {"quantization_config": {}},
        {"quantization_config": {"quant_method": None}},
        {"pad_token_id": -1},
        {"pad_token_id": 10**6},
    ],
    ids=str,
)
def test_what_has_no_part_in_a_model_does_not_keep_it_from_loading(model: Path, fields: dict[str, Any]) -> None:
    """The dtype of saving, an entry that names no quantization, and padding, which nothing here has."""
    expected = _logits(model)
    change_json(model / "config.json", "dtype", **fields)
    assert torch.equal(expected, _logits(model))
    load_tokenizer(model)


@pytest.mark.parametrize("name", ["auto", "torch.bfloat16", "bf16"])
def test_a_dtype_is_named_as_torch_names_it(model: Path, name: str) -> None:
    """Others end transformers with a missing attribute of torch, also where it reads the tokenizer."""
    change_json(model / "config.json", torch_dtype=name)
    for read in (load_tokenizer, load_config):
        with pytest.raises(UsageError, match=r"config\.json: .*torch_dtype"):
            read(model)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "states bitsandbytes, but all weights are floats"),
        ({"load_in_8bit": True}, "states bitsandbytes, but all weights are floats"),
        ({"quant_method": "gptq", "bits": 4}, "states gptq, but all weights are floats"),
        ({"quant_method": "awq", "bits": 4}, "states awq, but all weights are floats"),
        ({"group_size": 64, "bits": 4}, "names no quant_method, as MLX writes it"),
    ],
)
def test_an_entry_that_a_merge_left_is_not_taken_for_the_form_of_the_weights(
    model: Path, entry: dict[str, Any], said: str
) -> None:
    """Found by headers, before a package is asked for that would not help."""
    change_json(model / "config.json", quantization_config=entry)
    with pytest.raises(UsageError, match=rf"config\.json: quantization_config {said}"):
        load_tokenizer(model)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("Mistral", {"sliding_window": 0}),
        ("Qwen 2", {"use_sliding_window": False, "sliding_window": 12, "layer_types": ["sliding_attention"] * 4}),
        ("Gemma 3", {"sliding_window": None}),
    ],
)
def test_a_window_has_a_size(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """With 0, no token sees another one in transformers, and each sees all in engines: another text, without a word."""
    tiny_model(family).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", **fields)
    with pytest.raises(UsageError, match=r"config\.json: sliding_window is null or 0, and layers have a window"):
        empty_model(tmp_path)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_windows_of_published_families_have_a_size(family: str, tmp_path: Path) -> None:
    """No family is refused by it, nor one whose windows are off."""
    tiny_model(family).config.save_pretrained(tmp_path)
    load_config(tmp_path)


def test_the_first_name_of_a_rope_is_known_to_model_and_tokenizer(tmp_path: Path) -> None:
    """Phi 3 was published with `su`, which transformers reads without the length that stands beside it."""
    sets = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    tiny_model("Phi 3").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    entry = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
    change_json(tmp_path / "config.json", "rope_parameters", **entry, rope_scaling={"type": "su", **sets})
    assert "longrope" == load_config(tmp_path).rope_parameters["rope_type"]
    load_tokenizer(tmp_path)


def test_shards_beside_a_single_file_are_the_same_weights(model: Path) -> None:
    """transformers reads model.safetensors, and vLLM and SGLang the shards of the index."""
    tiny_llama(2, dtype=torch.float32).save_pretrained(model / "other", max_shard_size="20KB")
    for file in (model / "other").glob("model*"):
        shutil.move(file, model)
    with pytest.raises(UsageError, match=r"model-0.* is in model\.safetensors too, with other numbers"):
        _logits(model)
    for file in model.glob("model-*"):
        weights = load_file(model / "model.safetensors")
        save_file({name: weights[name] for name in load_file(file)}, file, {"format": "pt"})
    _logits(model)


def test_a_link_to_nothing_is_named(model: Path) -> None:
    """As in a snapshot of the hub's cache whose blobs were deleted."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(UnderstudyError, match=r"model\.safetensors: a link to \.\./blobs/gone, which is not there"):
        model_digest(model)


def test_the_template_of_a_processor_is_that_of_its_tokenizer(model: Path) -> None:
    """Engines apply it. It is in the digest, and the tokenizer's own goes first."""
    before = tokenizer_digest(model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    change_json(model / "tokenizer_config.json", "chat_template")
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert "{{ messages }}" == load_tokenizer(model).chat_template
    assert before != tokenizer_digest(model)
    assert [] == other_template(model, load_tokenizer(model))
    (model / "chat_template.jinja").write_text("own")
    assert "own" == load_tokenizer(model).chat_template
    assert "another chat template than the tokenizer" in other_template(model, load_tokenizer(model))[0]


def test_the_package_that_reads_a_tokenizer_is_named(model: Path) -> None:
    """transformers asks for another one where SentencePiece is missing."""
    (model / "tokenizer.json").rename(model / "tokenizer.model")
    with pytest.raises(UnderstudyError, match=r"tokenizer\.model alone is read with the package sentencepiece"):
        load_tokenizer(model)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    """transformers says that there is a report above, which is not shown."""
    tiny_model("Qwen 3 MoE").save_pretrained(tmp_path)
    absent = next(name for name in sorted(load_file(tmp_path / "model.safetensors")) if "experts.2.up_proj" in name)
    add_tensors(tmp_path, absent)
    with pytest.raises(UnderstudyError, match=f"{absent} is in no file, and its neighbours are"):
        load_model(tmp_path, "float32", CPU)


def test_nothing_is_missing_where_all_experts_have_the_same() -> None:
    """Layers may differ: some have no experts, or fewer."""
    experts = [f"layers.{layer}.experts.{number}.w.{kind}" for layer in (1, 2) for number in range(3) for kind in "ab"]
    assert missing_member(["layers.0.mlp.w.a", *experts, "layers.3.experts.0.w.a"]) is None
    assert "layers.2.experts.1.w.b" == missing_member([name for name in experts if name != "layers.2.experts.1.w.b"])


def test_weights_that_are_all_0_are_no_model() -> None:
    """As a training saves them whose shards were not gathered; one layer of zeros is one that was added and not trained."""
    damaged = tiny_llama(1, dtype=torch.float32)
    with torch.no_grad():
        damaged.model.layers[0].mlp.down_proj.weight.zero_()
        check_logits(damaged, VOCABULARY)
        for weight in damaged.parameters():
            weight.zero_()
    with pytest.raises(UsageError, match="its logits are the same for every token"):
        check_logits(damaged, VOCABULARY)


def test_a_quantized_model_is_not_blamed_on_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """8-bit weights of bitsandbytes are computed by what else is in the batch."""
    model = tiny_llama(1, dtype=torch.float32)
    model.config.quantization_config = type("Config", (), {"quant_method": "bitsandbytes"})()
    monkeypatch.setattr(model, "forward", lambda **_: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(
        UsageError, match=r"llama, quantized \(bitsandbytes\), cannot be decoded: .*; use a checkpoint in bfloat16"
    ):
        proved_way(model, VOCABULARY)


def test_a_stop_token_without_a_column_is_a_note() -> None:
    """A generation config of another model: no text would end."""
    assert [] == never_emitted([0, 2], 32)
    (note,) = never_emitted([2, 32], 32)
    assert "the stop token 32 (eos_token_id) is none of the 32 tokens" in note


def test_heads_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    """Gemma 4 has wider heads, and fewer, in its layers of full attention; the last layers use the keys and values of earlier."""
    sizes = dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY) | {"hidden_size_per_layer_input": 8}
    config = Gemma4TextConfig(
        **sizes,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=1,
    )
    config.save_pretrained(tmp_path)
    assert 2 * (2 * 8 + 1 * 16 + 2 * 8) == read_shape(tmp_path).cache_elements_per_token


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"),
        *("special_tokens_map.json", "added_tokens.json", "merges.txt", "model.safetensors.index.json"),
    ],
)
def test_a_file_of_a_gigabyte_is_refused_unread(model: Path, name: str) -> None:
    """Of zeros that take no place on the disk; its reader would hold it many times over."""
    with (model / name).open("ab") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(UsageError, match=f"{name}.*1,073,741,824|{name}.*larger than 134,217,728"):
        load_tokenizer(model)


def test_readers_of_what_models_ship_have_the_bound_too() -> None:
    """Whoever reads one of these files by itself, such as that of a processor, reads no gigabyte."""
    formats = {name: one for name, one in vars(model_json).items() if isinstance(one, Format)}

    assert len(formats) > 4
    assert {model_json.MOST_BYTES} == {one.most_bytes for one in formats.values()}

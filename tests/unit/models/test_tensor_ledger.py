"""The model that is loaded is the model in the files: every tensor is used as what it is, and no other file takes part."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.built import load_config
from pipeline.models.files import model_digest
from pipeline.models.listed_files import not_applied
from pipeline.models.loading import load_model
from pipeline.models.safetensors_header import TensorEntry
from pipeline.models.tensor_ledger import HeldTensor, LoadingInfo, StoredTensors, check_ledger
from tests.architectures import FAMILIES, tiny_model
from tests.fakes import add_tensors, change_json, tiny_llama

CPU = torch.device("cpu")
QUERY = "model.layers.0.self_attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


def _stored(model: Path, change: Callable[[str, torch.Tensor], Tensors]) -> None:
    """Every linear weight in another form."""
    file, found = model / "model.safetensors", Tensors()
    for name, weight in load_file(file).items():
        found |= change(name, weight) if "proj" in name else {name: weight}
    save_file(found, file, {"format": "pt"})


def _fp8(name: str, weight: torch.Tensor, scale: str | None = "_scale") -> Tensors:
    largest = weight.abs().max() / 448
    return {name: (weight / largest).to(torch.float8_e4m3fn)} | ({f"{name}{scale}": largest} if scale else {})


def _int8(name: str, weight: torch.Tensor) -> Tensors:
    largest = weight.abs().amax(1, keepdim=True) / 127
    return {name: (weight / largest).round().to(torch.int8), f"{name}_scale": largest}


FORMS: dict[str, tuple[Callable[[str, torch.Tensor], Tensors], dict[str, Any], str]] = {
    "FP8, a method that is not there": (_fp8, {"quant_method": "modelopt"}, r"config\.json: .*quantized by modelopt"),
    "FP8, no method": (_fp8, {}, r"weight_scale \(F32, of one number\), beside .*weight \(F8_E4M3\)"),
    "FP8 without a scale": (lambda *one: _fp8(*one, None), {}, r"is F8_E4M3 and no scale stands beside it"),
    "FP8, a scale of another name": (_fp8, {"quant_method": "fp8"}, r"would not be used, such as .*weight_scale"),
    "FP8 without a scale, a method": (lambda *one: _fp8(*one, None), {"quant_method": "fp8"}, r"is F8_E4M3"),
    "INT8": (_int8, {}, r"weight_scale \(F32, .* x 1\), beside .*weight \(I8\)"),
    "integers": (lambda name, weight: {name: weight.to(torch.int8)}, {}, r"is I8 and no scale stands beside it"),
    "packed, of another library": (
        lambda name, weight: {name: weight.to(torch.int32), name.replace("weight", "scales"): weight[:, :1].clone()},
        {},
        r"scales",
    ),
    "smoothed": (
        lambda name, weight: {name: weight, name.replace("weight", "pre_quant_scale"): weight[0].clone()}, {}, r"pre_quant_scale",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_stored_numbers_without_their_scales_are_refused(model: Path, form: str) -> None:
    """transformers would take them for weights: 448 in place of 1.1."""
    change, quantization, said = FORMS[form]
    _stored(model, change)
    if quantization:
        change_json(model / "config.json", quantization_config=quantization)
    with pytest.raises(UsageError, match=said):
        load_model(model, "float32", CPU)


def test_numbers_whose_scales_a_quantizer_applies_are_loaded(tmp_path: Path) -> None:
    """FP8 with a scale for each block: what is loaded is within the rounding of FP8, 1 in 16."""
    whole = tiny_llama(1, dtype=torch.float32, hidden=128)
    whole.save_pretrained(tmp_path)

    def blocks(name: str, weight: torch.Tensor) -> Tensors:
        return {
            key: value.reshape(1, 1) if "scale" in key else value
            for key, value in _fp8(name, weight, "_scale_inv").items()
        }

    _stored(tmp_path, blocks)
    change_json(
        tmp_path / "config.json", quantization_config={"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
    )
    loaded = load_model(tmp_path, "float32", CPU).get_parameter(QUERY)
    expected = whole.get_parameter(QUERY)
    assert float((loaded - expected).abs().max()) <= float(expected.abs().max()) / 16


def test_a_method_in_the_section_of_the_decoder_counts() -> None:
    """transformers looks there too."""
    from pipeline.models.model_json import ModelConfig

    found = ModelConfig.model_validate({"text_config": {"quantization_config": {"quant_method": "modelopt"}}})
    assert found.is_quantized
    assert not ModelConfig.model_validate({"quantization_config": {}}).is_quantized


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.self_attn.sinks",
        "extra.weight",
    ],
)
def test_a_tensor_without_a_place_is_refused(model: Path, name: str) -> None:
    """By name: the model would be another one with it."""
    add_tensors(model, **{name: torch.ones(3)})
    with pytest.raises(UsageError, match=f"1 tensors of its files would not be used, such as {name}"):
        load_model(model, "float32", CPU)


def test_two_tensors_for_one_place_are_refused(model: Path, tmp_path: Path) -> None:
    """In two files, or with and without the model's prefix: transformers uses one of the two. Equal ones stand for each other."""
    file = model / "model.safetensors"
    tensors = load_file(file)
    for factor in (1, 2):
        twice = tensors | {QUERY.removeprefix("model."): factor * tensors[QUERY]}
        save_file(twice, file, {"format": "pt"})
        with nullcontext() if factor == 1 else pytest.raises(UsageError, match="are both stored"):
            load_model(model, "float32", CPU)
    sharded = tmp_path / "sharded"
    tiny_llama(1, dtype=torch.float32).save_pretrained(sharded, max_shard_size="4KB")
    first, *_, last = sorted(sharded.glob("*.safetensors"))
    own, others = load_file(last), load_file(first)
    save_file(own | others, last, {"format": "pt"})
    assert torch.equal(tensors[QUERY], load_model(sharded, "float32", CPU).get_parameter(QUERY))
    save_file(own | {name: weight + 1 for name, weight in others.items()}, last, {"format": "pt"})
    with pytest.raises(UsageError, match=f"is in {first.name} too, with other numbers"):
        load_model(sharded, "float32", CPU)


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_without_a_place_is_refused_unless_it_is_zero(model: Path, value: float) -> None:
    """GPTQ writes a bias for every layer, which is zero where the layer has none."""
    bias = QUERY.replace("q_proj.weight", "o_proj.bias")
    expected = _logits(model)
    add_tensors(model, **{bias: torch.tensor([0.0] * 15 + [value])})
    if not value:
        assert torch.equal(expected, _logits(model))
        return
    with pytest.raises(UsageError, match=f"1 tensors of its files would not be used, such as {bias}"):
        load_model(model, "float32", CPU)


def test_what_transformers_ignores_is_refused_if_it_is_a_weight(tmp_path: Path) -> None:
    """GPT-2 ignores every `attn.bias`, which is a mask in old files and a learnt row in these."""
    tiny_model("GPT-2").save_pretrained(tmp_path)
    name = "transformer.h.0.attn.bias"
    add_tensors(tmp_path, **{name: torch.ones(1, 1, 8, 8)})
    load_model(tmp_path, "float32", CPU)
    add_tensors(tmp_path, **{name: torch.ones(96)})
    with pytest.raises(UsageError, match=f"would not be used, such as {name}"):
        load_model(tmp_path, "float32", CPU)


def test_a_transformers_that_does_not_say_what_it_left_out_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left out could be a weight."""
    monkeypatch.delattr(PreTrainedModel, "_adjust_missing_and_unexpected_keys")
    with pytest.raises(UnderstudyError, match="does not report which tensors it left out"):
        load_model(model, "float32", CPU)


# Names of published checkpoints that no parameter takes, read from index files and from the programs that convert them.
PUBLISHED: dict[str, tuple[str, tuple[int, ...], str]] = {
    "Llama 2": ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,), "F32"),
    "GPT-NeoX, mask": ("gpt_neox.layers.0.attention.bias", (1, 1, 8, 8), "BOOL"),
    "GPT-NeoX, masked": ("gpt_neox.layers.0.attention.masked_bias", (), "F32"),
    "CodeGen": ("transformer.h.0.attn.causal_mask", (1, 1, 8, 8), "BOOL"),
    "BERT, next sentences": ("cls.seq_relationship.weight", (2, 8), "F32"),
    "GPT-2, mask": ("h.0.attn.bias", (1, 1, 8, 8), "U8"),
    "BERT": ("bert.embeddings.position_ids", (1, 8), "I64"),
    "DeepSeek V3": ("model.layers.2.shared_head.norm.weight", (8,), "BF16"),
    "DeepSeek V3, FP8": ("model.layers.2.mlp.experts.0.up_proj.weight_scale_inv", (1, 1), "F32"),
    "Qwen 3.5": ("mtp.layers.0.mlp.gate_proj.weight", (8, 8), "BF16"),
    "MiMo": ("model.mtp_layers.0.input_proj.weight", (8, 8), "BF16"),
    "Gemma 3": ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", (8, 8), "BF16"),
    "Qwen 3.5, images": ("model.visual.blocks.0.attn.qkv.weight", (8, 8), "BF16"),
    "Llama 4": ("multi_modal_projector.linear_1.weight", (8, 8), "BF16"),
    "Omni": ("talker.model.layers.0.mlp.gate_proj.weight", (8, 8), "BF16"),
    "KV scales": ("model.layers.0.self_attn.k_proj.k_scale", (), "F32"),
    "LLaVA": ("model.image_newline", (8,), "BF16"),
    "GLM-4V": ("transformer.vision.patch_embedding.proj.weight", (8, 3, 2, 2), "BF16"),
    "DeepSeek V4": ("mtp.0.attn.wq_a.weight", (8, 8), "BF16"),
    "ERNIE 4.5": ("model.mtp_block.0.mlp.up_proj.weight", (8, 8), "BF16"),
    "PPO": ("v_head.summary.weight", (1, 8), "F32"),
}  # fmt: skip
OWN = "model.layers.0.mlp.gate_proj.weight"
HELD = {OWN: HeldTensor(True, True, (8, 8)), "model.layers.1.mlp.gate_proj.weight": HeldTensor(True, True, (8, 8))}


def _entry(shape: tuple[int, ...], dtype: str) -> TensorEntry:
    return TensorEntry(dtype=dtype, shape=list(shape), data_offsets=(0, 0))


def _tensors(stored: dict[str, TensorEntry]) -> StoredTensors:
    return StoredTensors(stored, {})


def _info(*unexpected: str) -> LoadingInfo:
    return {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": unexpected}


@pytest.mark.parametrize("whose", PUBLISHED)
def test_published_tensors_that_text_does_not_need_are_no_fault(whose: str) -> None:
    """Masks, RoPE tables, layers that predict several tokens, other senses, scales of KV caches."""
    name, shape, dtype = PUBLISHED[whose]
    stored = {OWN: _entry((8, 8), "BF16"), name: _entry(shape, dtype)}
    extra = {"model.layers.2.eh_proj.weight": _entry((8, 16), "BF16")} if "layers.2." in name else {}
    check_ledger(Path("m"), _tensors(stored | extra), HELD, _info(name, *extra), quantized=False)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.attn.masked", (8,)),
        ("model.layers.0.image_gate.weight", (8,)),  # in a layer of the decoder, where text goes through
        ("model.layers.0.mlp.vision_up.weight", (8, 8)),
        ("model.layers.1.self_attn.q_scale", (8,)),  # learnt: the scale of a KV cache is one number
        ("model.layers.0.self_attn.rotary_emb.weight", (8,)),
        ("model.layers.0.mlp.gate_proj.weight_scale", ()),
        ("model.layers.0.mlp.gate_proj.input_scale", ()),
        ("model.layers.0.self_attn.eh_proj.weight", (8, 8)),  # in a layer that the model has
        ("score.weight", (2, 8)),
    ],
)
def test_tensors_that_look_like_harmless_ones_are_refused(name: str, shape: tuple[int, ...]) -> None:
    """They would change the logits."""
    stored = {OWN: _entry((8, 8), "BF16"), name: _entry(shape, "F32")}
    with pytest.raises(UsageError, match=f"would not be used, such as {name}"):
        check_ledger(Path("m"), _tensors(stored), HELD, _info(name), quantized=False)


def test_a_layer_that_predicts_several_tokens_may_be_left_out() -> None:
    """It has tensors that no layer of the decoder has; one that has none is a layer of the decoder."""
    own, more = ("model.layers.2.mlp.gate_proj.weight",), ("model.layers.2.eh_proj.weight",)
    stored = {name: _entry((8, 8), "BF16") for name in (OWN, *own, *more)}
    check_ledger(Path("m"), _tensors(stored), HELD, _info(*own, *more), quantized=False)
    with pytest.raises(UsageError, match="1 tensors are of more layers"):
        check_ledger(Path("m"), _tensors(stored), HELD, _info(*own), quantized=False)


def test_a_learnt_buffer_is_in_the_files() -> None:
    """Others are computed."""
    held = {
        name: HeldTensor(False, True, (8,)) for name in ("model.layers.0.gate.e_score_correction_bias", "a.slope_rate")
    }
    info = _info() | {"missing_keys": list(held)}
    with pytest.raises(UsageError, match=r"1 tensors of the config are in no file, such as .*e_score_correction_bias"):
        check_ledger(Path("m"), _tensors({}), held, info, quantized=False)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_that_is_documented_passes(family: str, tmp_path: Path) -> None:
    """As transformers publishes it: experts in tensors of their own, names of the first release."""
    tiny_model(family).save_pretrained(tmp_path)
    load_model(tmp_path, "float32", CPU)


def _logits(path: Path) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = load_model(path, "float32", CPU)(input_ids=torch.arange(8)[None]).logits
    return logits


def test_an_adapter_beside_a_whole_model_takes_no_part(model: Path) -> None:
    """transformers would apply it, and no digest would know; it is said."""
    expected, digest = _logits(model), model_digest(model)
    adapted = get_peft_model(
        tiny_llama(1, dtype=torch.float32),
        LoraConfig(r=2, lora_alpha=16, target_modules=["q_proj"], init_lora_weights=False),
    )
    adapted.save_pretrained(model)
    assert digest == model_digest(model)
    assert torch.equal(expected, _logits(model))
    (note,) = not_applied(model)
    assert "the adapter is not applied" in note


@pytest.mark.parametrize(
    "fields",
    [
        {"_attn_implementation": "flash_attention_2"},
        {"attn_implementation": "kernels-community/flash-attn"},
        {"transformers_weights": "other.safetensors"},
    ],
    ids=str,
)
def test_a_config_names_neither_packages_nor_other_weights(model: Path, fields: dict[str, str]) -> None:
    """What is computed is in the listed files; how, is chosen here."""
    expected = _logits(model)
    save_file(
        {name: 2 * weight for name, weight in load_file(model / "model.safetensors").items()},
        model / "other.safetensors",
    )
    change_json(model / "config.json", **fields)
    assert torch.equal(expected, _logits(model))


def test_code_of_another_repository_is_refused(model: Path) -> None:
    """It is in the cache of the hub, and in no digest."""
    change_json(model / "config.json", auto_map={"AutoConfig": "some/where--configuration_x.XConfig"}, model_type="x")
    with pytest.raises(UsageError, match=r"auto_map names code of another repository \(some/where--configuration_x"):
        load_config(model, trust_remote_code=True)


def test_a_model_keeps_the_name_of_its_own_directory(model: Path) -> None:
    """Not of the place that its files were read from, which is gone."""
    loaded = load_model(model, "float32", CPU)
    assert str(model) == loaded.name_or_path == loaded.config.name_or_path


def test_a_tied_flag_gives_way_to_the_weights(model: Path) -> None:
    """transformers keeps a head of its own; what is made of the model follows its config."""
    assert not load_model(model, "float32", CPU).config.tie_word_embeddings
    change_json(model / "config.json", tie_word_embeddings=True)
    assert not load_model(model, "float32", CPU).config.tie_word_embeddings
    add_tensors(model, "lm_head.weight")
    assert load_model(model, "float32", CPU).config.tie_word_embeddings
    change_json(model / "config.json", tie_word_embeddings=False)
    with pytest.raises(UnderstudyError, match=r"1 tensors of the config are in no file, such as lm_head\.weight"):
        load_model(model, "float32", CPU)


def test_an_adapter_alone_is_no_model(tmp_path: Path) -> None:
    """With what to do about it."""
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"an adapter without its model .* merge it into the model"):
        load_model(tmp_path, "float32", CPU)


@pytest.mark.parametrize(
    "inside",
    [
        "_orig_mod.{}",
        "module.{}",
        "base_model.model.{}",
        "language_model.{}",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.q_proj.base_layer.weight",
    ],
)
def test_names_of_a_model_inside_of_another_one_are_said(model: Path, inside: str) -> None:
    """They are of a wrapper, and no config would describe them."""
    file = model / "model.safetensors"
    found = load_file(file)
    new = {inside.format(name): weight for name, weight in found.items()} if "{}" in inside else {**found}
    if "{}" not in inside:
        new[inside] = new.pop(QUERY)
    save_file(new, file, {"format": "pt"})
    with pytest.raises(UsageError, match=r"the files have .*as of a model inside of another one"):
        load_model(model, "float32", CPU)


@pytest.mark.parametrize("saved_as", ["LlamaForCausalLMEagle3", "LlamaForSequenceClassification", "LlamaModel"])
def test_what_is_no_whole_model_is_said(model: Path, saved_as: str) -> None:
    """Files without a head or an embedding, of a class that writes no text."""
    add_tensors(model, "model.norm.weight", **{"score.weight": torch.ones(1, 4)})
    change_json(model / "config.json", architectures=[saved_as])
    with pytest.raises(UsageError, match=f"in no file.*declares a {saved_as}, which is no whole model"):
        load_model(model, "float32", CPU)


def test_a_weight_that_the_config_does_not_have_is_no_packed_one(model: Path) -> None:
    """A bias with numbers: an engine that reads another form of weights would not help."""
    add_tensors(model, **{QUERY.replace("weight", "bias"): torch.ones(16)})
    with pytest.raises(UsageError, match=r"let config\.json state the part that has them"):
        load_model(model, "float32", CPU)

"""Model directories of strangers: what is wrong is found before a model is built, and the line names the file and the field."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5Config

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.built import empty_model
from pipeline.models.generation_config import sampling_defaults
from pipeline.models.loading import check_finite, load_model, load_tokenizer
from pipeline.models.shape import measure_weights, read_shape
from pipeline.models.tokenizers import stop_token_ids
from pipeline.speculation.choice import check_logits
from tests.architectures import VOCABULARY, tiny_model
from tests.fakes import change_json, tiny_llama, tiny_tokenizer


@pytest.mark.parametrize("layers", [10**7, 9_999, 10**400, 0, -1, 2.0, "2", [2]])
def test_more_layers_than_tensors_are_found_without_building_them(model: Path, layers: Any) -> None:
    """A model of 10^7 layers would take all memory before its weights are looked at."""
    change_json(model / "config.json", num_hidden_layers=layers)
    for read in (load_tokenizer, read_shape, lambda path: load_model(path, "float32", torch.device("cpu"))):
        with pytest.raises(UnderstudyError, match=r"config\.json: .*num_hidden_layers"):
            read(model)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": "a"}, ".*hidden_size"),
        ({"vocab_size": 10**9}, ".*vocab_size"),
        ({"hidden_size": 10**9}, ".*hidden_size"),
        # transformers makes a name for each label, whatever the model is for
        ({"num_labels": 10**9}, ".*at most 10"),
        ({"vision_config": {"num_labels": 10**9}}, ".*at most 10"),
        ({"audio_config": {"encoder_layers": 10**9}}, ".*at most 10"),
        # names of GPT-2, MPT and OPT among others
        ({"n_layer": 5_000}, "n_layer is .* of different models"),
        ({"n_embd": 10**9}, "n_embd is .* of different models"),
        ({"d_model": 10**9}, "d_model is .* of different models"),
        ({"tie_word_embeddings": "yes"}, "unsupported model"),
        ({"id2label": {"a": "b"}}, "unsupported model"),
        ({"num_attention_heads": 3}, "unsupported model"),
        ({"layer_types": 5}, "unsupported model"),
    ],
    ids=str,
)
def test_what_cannot_be_in_a_config_is_no_fault_of_the_tokenizer(
    model: Path, fields: dict[str, Any], said: str
) -> None:
    """AutoTokenizer reads the config too, and raises what it finds there. The config is named, with the field; what would fill
    the memory is refused in any section."""
    change_json(model / "config.json", **fields)
    with pytest.raises(UnderstudyError, match=rf"config\.json: {said}"):
        load_tokenizer(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("eos_token_id", eos) for eos in ("abc", 1.5, -1, [1, "a"], {"a": 1}, True, 2**40)),
        *(("temperature", temperature) for temperature in (math.nan, math.inf, -1, "1", [1])),
    ],
)
def test_stop_tokens_are_token_ids_and_a_temperature_is_a_number_from_0(model: Path, name: str, value: Any) -> None:
    """A list of ids too; NaN is no number."""
    change_json(model / "generation_config.json", **{name: value})
    with pytest.raises(UnderstudyError, match=rf"generation_config\.json: not a complete generation config \({name}"):
        sampling_defaults(model)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "weights.bin"])
def test_an_index_names_files_of_its_own_directory(model: Path, name: str) -> None:
    """A path elsewhere is refused before it is opened."""
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(
        UnderstudyError, match=r"index\.json: .*not the name of a \.safetensors file in the same directory"
    ):
        measure_weights(model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_numbers_are_refused(value: float) -> None:
    """With the tensor and how many."""
    found = tiny_llama(1, dtype=torch.float32)
    check_finite(found, Path("model"))
    with torch.no_grad():
        found.model.norm.weight[3] = value
    with pytest.raises(UnderstudyError, match=r"model: 1 of the 16 weights of model\.norm\.weight are NaN or infinite"):
        check_finite(found, Path("model"))


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("Qwen 3", {"attention_bias": True}, r"16 tensors of the config are in no file, such as .*\.0\.self_attn\.k_proj\.bias"),
        ("Qwen 3", {"num_attention_heads": 5}, r"\.o_proj\.weight has the shape 32 x 640 by the config and 32 x 512 in"),
        ("Qwen 3", {"num_hidden_layers": 2, "layer_types": None}, r"22 tensors are of more layers .* model\.layers\.2\."),
        ("GPT-2", {"n_layer": 1}, r"tensors are of more layers than the config has, such as transformer\.h\.1\."),
        ("OPT", {"num_hidden_layers": 3}, r"tensors are of more layers than the config has"),
        ("Mixtral", {"num_local_experts": 2}, r"experts\.down_proj has the shape 2 x 32 x 48 by the config and 4 x 32 x 48"),
        ("GPT-2", {"n_layer": -3}, r"n_layer: should be greater than 0"),
        ("Gemma 2", {"hidden_activation": "nonsense"}, r"config\.json: .*: hidden_activation = 'nonsense' is not known"),
    ],
)  # fmt: skip
def test_a_config_that_does_not_describe_the_weights_is_refused(
    tmp_path: Path, family: str, fields: dict[str, Any], said: str
) -> None:
    """transformers takes random numbers for what is missing, and leaves out layers."""
    tiny_model(family).save_pretrained(tmp_path)
    load_model(tmp_path, "float32", torch.device("cpu"))
    change_json(tmp_path / "config.json", **fields)
    with pytest.raises(UnderstudyError, match=said):
        load_model(tmp_path, "float32", torch.device("cpu"))


@pytest.mark.parametrize("eps", [-1.0, -1e9])
def test_a_config_that_makes_logits_nan_is_refused(tmp_path: Path, eps: float) -> None:
    """Every weight is a number, and no output is: found at `pair`, before prompts are read."""
    tiny_model("Qwen 3").save_pretrained(tmp_path)
    check_logits(load_model(tmp_path, "float32", torch.device("cpu")), VOCABULARY)
    change_json(tmp_path / "config.json", rms_norm_eps=eps)
    with pytest.raises(UsageError, match=r"its logits are NaN or infinite"):
        check_logits(load_model(tmp_path, "float32", torch.device("cpu")), VOCABULARY)


def test_another_kind_of_model_is_found_before_its_weights(tmp_path: Path) -> None:
    """By the config alone: a translation model is no causal language model."""
    sizes = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    T5Config(**sizes).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json: unsupported model: models of type t5 are no causal"):
        empty_model(tmp_path)


def test_a_text_config_is_of_multimodal_models(model: Path) -> None:
    """transformers hands it back as it is."""
    change_json(model / "config.json", text_config={"vocab_size": 32})
    with pytest.raises(
        UsageError, match=r"config\.json: unsupported model: a `text_config`, which models of type llama"
    ):
        read_shape(model)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 3}, None, [0, 3]),
        ({"eos_token_id": [3, 4]}, None, [0, 3, 4]),
        ({"eos_token_id": -1}, None, [0]),
        ({"eos_token_id": 3}, {"eos_token_id": 5}, [0, 5]),
        ({"eos_token_id": 3}, {}, [0]),
    ],
    ids=str,
)
def test_the_stop_tokens_of_a_model_without_a_generation_config_are_those_of_its_config(
    model: Path, config: dict[str, Any], generation: dict[str, Any] | None, expected: list[int]
) -> None:
    """As transformers and vLLM read them; and the tokenizer's own."""
    (model / "generation_config.json").unlink()
    change_json(model / "config.json", **config)
    if generation is not None:
        change_json(model / "generation_config.json", **generation)
    assert expected == stop_token_ids(model, tiny_tokenizer())


@pytest.mark.parametrize("read", [read_shape, empty_model])
def test_a_model_that_brings_its_code_names_the_key_that_allows_it(model: Path, read: Any) -> None:
    """And is not run without it."""
    names = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.X"}
    change_json(model / "config.json", model_type="x", auto_map=names)
    (model / "configuration_x.py").write_text("raise SystemExit(7)")
    with pytest.raises(
        UsageError, match=r"config\.json: .* code that ships with it .* set pair\.trust_remote_code to true"
    ):
        read(model)

"""Loading, measuring and matching models and tokenizers."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.attention_layers import AttentionLayers
from pipeline.models.devices import choose_device, supports_bf16
from pipeline.models.files import copy_files, model_digest, model_files, tokenizer_digest
from pipeline.models.loading import _brief, dtype_bytes, load_model, load_tokenizer
from pipeline.models.shape import Shape, Weights, measure_weights, read_shape
from pipeline.models.tokenizers import check_columns, check_same_family, columns_for, stop_token_ids
from tests.architectures import tiny_model
from tests.fakes import change_json, saved_tiny_llama, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with its tokenizer."""
    return saved_tiny_llama(tmp_path_factory.mktemp("model"), torch.bfloat16)


def _bpe(merges: list[tuple[str, str]], **special: str) -> Any:
    """A BPE tokenizer over the bytes whose merged tokens are all there, whatever the merges' order."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *sorted("".join(merge) for merge in merges), "<end>", "<pad>"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {"eos_token": "<end>", "pad_token": "<pad>"} | special
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


MERGES = [("r", "e"), ("e", "t"), ("u", "r")]


def test_equal_tokenizers_are_one_family() -> None:
    """No difference to report."""
    assert [] == check_same_family(_bpe(MERGES), _bpe(MERGES))


def test_one_token_that_differs_is_named() -> None:
    """A token one side lacks, and one with another id."""
    with pytest.raises(UsageError, match=r"token 'w31' is id 31 for the target and missing for the draft"):
        check_same_family(tiny_tokenizer(32), tiny_tokenizer(31))
    swapped = SimpleNamespace(get_vocab=lambda: {**tiny_tokenizer().get_vocab(), "w7": 8, "w8": 7})
    with pytest.raises(UsageError, match=r"token 'w7' is id 7 for the target and id 8 for the draft"):
        check_same_family(tiny_tokenizer(), swapped)


def test_the_same_tokens_merged_in_another_order_are_another_family() -> None:
    """'ret' of 'return' is 're' + 't' or 'r' + 'et': equal token lists, but different tokenisation."""
    target, draft = _bpe(MERGES), _bpe(MERGES[1:] + MERGES[:1])

    assert target.get_vocab() == draft.get_vocab()
    with pytest.raises(UsageError, match="split text differently"):
        check_same_family(target, draft)


@pytest.mark.parametrize(
    ("special", "name"),
    [({"eos_token": "<pad>"}, "eos_token"), ({"pad_token": "<end>"}, "pad_token"), ({"chat_template": "x"}, "chat")],
)
def test_legal_differences_are_reported(special: dict[str, str], name: str) -> None:
    """Another EOS, padding or chat template is allowed; the target's is used and reported."""
    (report,) = check_same_family(_bpe(MERGES), _bpe(MERGES, **special))

    assert report.startswith(name)
    assert "the target's" in report
    assert repr(next(iter(special.values()))) in report


def test_weights_are_counted_from_headers(directory: Path) -> None:
    """Parameters and bytes of a real model, over all its files."""
    parameters = sum(weight.numel() for weight in tiny_llama(1).parameters())

    assert Weights(parameters, 2 * parameters) == measure_weights(directory)


@pytest.mark.parametrize("stored", ["masks and towers", "another head", "the same head"])
def test_what_is_counted_is_what_is_loaded(stored: str, tmp_path: Path) -> None:
    """Not tensors that stand beside it. A head of its own counts where the config ties it too, unless it equals the embedding."""
    tiny_llama(1, dtype=torch.float32).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if stored == "masks and towers":
        tensors |= {
            "model.visual.blocks.0.weight": torch.ones(64, 64),
            "mtp.layers.0.mlp.up_proj.weight": torch.ones(8, 8),
        }
    else:
        change_json(tmp_path / "config.json", tie_word_embeddings=True)
        tensors |= {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()} if stored == "the same head" else {}
    save_file(tensors, file, {"format": "pt"})
    loaded = load_model(tmp_path, "float32", torch.device("cpu"))
    assert sum(weight.numel() for weight in loaded.parameters()) == measure_weights(tmp_path).parameters


def test_weights_in_several_files_are_added(tmp_path: Path) -> None:
    """A sharded model counts as its unsharded self."""
    tiny_llama(1, dtype=torch.float32).save_pretrained(tmp_path, max_shard_size="4KB")
    parameters = sum(weight.numel() for weight in tiny_llama(1).parameters())

    assert 1 < len(list(tmp_path.glob("*.safetensors")))
    assert Weights(parameters, 4 * parameters) == measure_weights(tmp_path)


def test_weights_in_two_formats_are_counted_once(tmp_path: Path) -> None:
    """`consolidated.safetensors` beside one file or beside shards is neither counted nor part of the digest."""
    for name, shard in (("whole", "1GB"), ("sharded", "4KB")):
        path = tmp_path / name
        tiny_llama(1, dtype=torch.float32).save_pretrained(path, max_shard_size=shard)
        counted, digest = measure_weights(path), model_digest(path)
        shutil.copy(next(path.glob("*.safetensors")), path / "consolidated.safetensors")

        assert counted == measure_weights(path)
        assert digest == model_digest(path)


def test_a_missing_shard_and_a_damaged_index_are_named(tmp_path: Path) -> None:
    """The index lists the shards, so a missing one is noticed before anything is loaded."""
    tiny_llama(1, dtype=torch.float32).save_pretrained(tmp_path, max_shard_size="4KB")
    first = min(tmp_path.glob("*.safetensors"))
    first.unlink()
    with pytest.raises(
        UnderstudyError, match=rf"{first.name}: not there, but model\.safetensors\.index\.json lists it"
    ):
        measure_weights(tmp_path)
    for content in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(UnderstudyError, match=r"index\.json: (damaged|not a complete index)"):
            measure_weights(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_weight_file_is_named(directory: Path, tmp_path: Path, keep: int) -> None:
    """Cut in the length, the header or the tensors: measuring and loading both say which."""
    model = shutil.copytree(directory, tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])

    with pytest.raises(UnderstudyError, match=r"model\.safetensors: (damaged safetensors file|truncated)"):
        measure_weights(model)
    with pytest.raises(UnderstudyError, match=r"model\.safetensors: (damaged safetensors file|truncated)"):
        load_model(model, "float32", torch.device("cpu"))


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"\xff" * 64, b"[]" * 40])
def test_a_file_of_another_kind_is_not_a_weight_file(tmp_path: Path, content: bytes) -> None:
    """A Git LFS pointer, a header longer than any memory, other text."""
    (tmp_path / "model.safetensors").write_bytes(content)

    with pytest.raises(UnderstudyError, match="damaged safetensors file"):
        measure_weights(tmp_path)


def test_a_model_is_loaded_in_the_asked_format_for_inference(directory: Path) -> None:
    """The stored weights, in the given dtype, in eval mode."""
    model = load_model(directory, "float32", torch.device("cpu"))
    expected = tiny_llama(1, dtype=torch.bfloat16).float()

    assert torch.float32 == model.dtype
    assert not model.training
    assert torch.equal(expected.lm_head.weight, model.lm_head.weight)


def test_a_model_that_is_not_safetensors_is_not_loaded(directory: Path, tmp_path: Path) -> None:
    """Pickled weights are refused, as are no weights at all and a directory without a config."""
    shutil.copy(directory / "config.json", tmp_path)
    with pytest.raises(UnderstudyError, match=r"cannot be loaded|no model\.safetensors"):
        load_model(tmp_path, "float32", torch.device("cpu"))
    torch.save(tiny_llama(1).state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnderstudyError, match=r"cannot be loaded|no model\.safetensors"):
        load_model(tmp_path, "float32", torch.device("cpu"))
    (tmp_path / "config.json").unlink()
    with pytest.raises(UnderstudyError, match=r"config\.json: no such file"):
        load_model(tmp_path, "float32", torch.device("cpu"))


def test_tokenizers_load_or_say_why_not(directory: Path, tmp_path: Path) -> None:
    """From a model's directory. Of one without its files transformers would make an empty tokenizer, which then differs from the
    target's."""
    assert tiny_tokenizer().get_vocab() == load_tokenizer(directory).get_vocab()
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(UnderstudyError, match="no tokenizer files"):
        load_tokenizer(tmp_path)


def test_what_a_config_says(directory: Path) -> None:
    """Logits, context, and keys and values of one token: 2 layers of one head of 8 numbers, twice."""
    full = AttentionLayers({None: 2}, states=0, are_named=False)
    assert Shape(32, context=256, cache_elements_per_token=2 * 2 * 8, attention=full) == read_shape(directory)
    assert (2, 4) == (dtype_bytes("bfloat16"), dtype_bytes("float32"))


@pytest.mark.parametrize(
    ("config", "elements"),
    [
        (
            {"model_type": "qwen3_next", "num_hidden_layers": 8, "num_key_value_heads": 2, "head_dim": 16},
            2 * 2 * 2 * 16,
        ),
        (
            {
                "model_type": "gemma3n_text",
                "num_hidden_layers": 10,
                "num_kv_shared_layers": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
            },
            2 * 6 * 2 * 16,
        ),
        ({"model_type": "falcon", "num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}, 2 * 3 * 16),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_only_caches_that_there_are_count(config: dict[str, Any], elements: int, tmp_path: Path) -> None:
    """Recurrent layers have none, layers that share one have one together, and `multi_query` has one head."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert elements == read_shape(tmp_path).cache_elements_per_token


@pytest.mark.parametrize(("bits", "packed"), [(4, torch.int32), (8, torch.int32), (4, torch.uint8)], ids=str)
def test_packed_weights_count_as_what_they_stand_for(tmp_path: Path, bits: int, packed: torch.dtype) -> None:
    """Whatever the names and types of packed weights, scales and zeros: GPTQ, AWQ, compressed-tensors, NVFP4."""
    model = tiny_llama(1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    file, each = tmp_path / "model.safetensors", torch.iinfo(packed).bits // bits
    tensors = load_file(file)
    for name in [name for name in tensors if "proj" in name]:
        rows, columns = tensors.pop(name).shape
        stem = name.removesuffix("weight")
        tensors[f"{stem}weight_packed"] = torch.zeros(rows, columns // each, dtype=packed)
        tensors[f"{stem}weight_scale"] = torch.ones(rows, 2)
    save_file(tensors, file, {"format": "pt"})
    change_json(tmp_path / "config.json", quantization_config={"quant_method": "compressed-tensors", "bits": bits})
    assert sum(weight.numel() for weight in model.parameters()) == measure_weights(tmp_path).parameters


def test_latent_attention_stores_what_keys_and_values_are_made_of(tmp_path: Path) -> None:
    """A rank and the part with positions, a layer: as much as transformers keeps of a token."""
    model = tiny_model("DeepSeek V3")
    model.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    with torch.no_grad():
        layers = model(input_ids=torch.arange(5)[None], use_cache=True).past_key_values.layers
    own = sum(tensor.numel() for layer in layers for tensor in (layer.keys, layer.values)) // 5
    assert 4 * (16 + 8) == own == shape.cache_elements_per_token


def test_devices_that_are_not_there_are_usage_errors() -> None:
    """A misspelt one, a GPU that no machine has, and Apple's; `cpu` and `auto` always work."""
    for name in ("cup", "cuda:977", "mps"):
        with pytest.raises(UsageError, match=f"device = '{name}'"):
            choose_device(name)
    assert torch.device("cpu") == choose_device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (0, "cuda", "device = 'cuda' cannot be used here: torch sees no GPU here; choose another"),
        (1, "cuda:1", "there is 1 GPU here, cuda:0; choose another"),
        (4, "cuda:4", "there are 4 GPUs here, cuda:0 to cuda:3; choose another"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_their_number(
    monkeypatch: pytest.MonkeyPatch, count: int, name: str, said: str
) -> None:
    """And not with CUDA's "invalid device ordinal"."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UsageError, match=re.escape(said)):
        choose_device(name)


@pytest.mark.parametrize(
    ("listed", "eos", "expected"),
    [([5, 3], 0, [0, 3, 5]), (7, 0, [0, 7]), (None, 4, [4]), ("absent", 4, [4]), (None, None, []), ([2], 2, [2])],
)
def test_stop_tokens_are_those_of_config_and_tokenizer(
    tmp_path: Path, listed: Any, eos: int | None, expected: list[int]
) -> None:
    """A list, a number, null, or no generation config at all, joined with the tokenizer's EOS."""
    if listed != "absent":
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": listed}))

    assert expected == stop_token_ids(tmp_path, SimpleNamespace(eos_token_id=eos))


def test_bf16_is_multiplied_where_there_are_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs before compute capability 8.0 emulate bfloat16, and other devices do not use the CPU's units."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    for capability, expected in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert expected == supports_bf16(torch.device("cuda"))
    assert supports_bf16(torch.device("cpu"))
    assert not supports_bf16(torch.device("mps"))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, os.mkfifo) for name in ("tokenizer.json", "config.json", "model.safetensors")),
        ("tokenizer.json", os.mkdir),
        ("config.json", lambda path: path.symlink_to("nothing")),
    ],
)
def test_what_is_no_file_is_not_taken_for_one_that_lacks(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    """transformers looks for another form of the file then, and its errors name packages to install."""
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path / name))}: not a regular file"):
        load_tokenizer(tmp_path)


def test_an_error_of_a_library_is_not_cut_within_a_word() -> None:
    """`to convert a slow tokenizer to a ; download` told nobody what was missing."""
    assert _brief(ValueError("ab " * 200)).endswith("ab ...")
    assert _brief(ValueError("ab " * 20)) == " ".join(["ab"] * 20)
    assert _brief(ValueError()) == "ValueError"


def test_only_added_tokens_may_lack_a_column_of_logits() -> None:
    """Text without special tokens has the others, and a tokenizer with those is of another model. Ids may have gaps."""
    tokenizer = tiny_tokenizer(32)
    tokenizer.add_tokens(["<image>", "<audio>"])

    assert [] == check_columns(tokenizer, 34, "m")
    assert ["<audio>"] == check_columns(tokenizer, 33, "m")
    assert ["<image>", "<audio>"] == check_columns(tokenizer, 32, "m")
    with pytest.raises(
        UsageError, match="m: its logits have 31 columns and the tokenizer 34 tokens; 'w31' is the first"
    ):
        check_columns(tokenizer, 31, "m")
    assert 34 == columns_for(tokenizer)


def test_every_file_that_transformers_reads_is_part_of_the_tokenizer(directory: Path, tmp_path: Path) -> None:
    """With another template for tools, prompts are rendered otherwise: nothing made before may be used again."""
    model = shutil.copytree(directory, tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": "D", "tool_use": "T"}
    tokenizer.save_pretrained(model)
    before = tokenizer_digest(model), model_digest(model)
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("U")
    (tmp_path / "copy").mkdir()
    copy_files(model_files(model), model, tmp_path / "copy")

    assert not set(before) & {tokenizer_digest(model), model_digest(model)}
    assert {"default": "D", "tool_use": "U"} == load_tokenizer(tmp_path / "copy").chat_template
    assert model_digest(model) == model_digest(tmp_path / "copy")

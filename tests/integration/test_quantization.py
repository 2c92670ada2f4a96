"""Quantized variants: what is saved is what a fresh process loads."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from pipeline.errors import UnderstudyError
from pipeline.models.loading import load_model
from pipeline.models.shape import measure_weights
from pipeline.quantization.fp8 import block_scales, to_fp8
from pipeline.quantization.variants import quantize
from pipeline.speculation.batch import Request
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY
from tests.fakes import family_model, full_logits, greedy_text, tiny_llama

CPU = torch.device("cpu")
SIZE = 256  # keys and values of half of it are whole blocks of 128
IDS = [3, 1, 4, 1, 5, 9]
_FRESH = """
import json, sys
from pathlib import Path
import torch
from pipeline.models.loading import load_model
torch.set_num_threads(1)
found = {}
for path in sys.argv[1:]:
    model = load_model(Path(path), "bfloat16", torch.device("cpu"))
    with torch.inference_mode():
        found[path] = model(input_ids=torch.tensor([[3, 1, 4, 1, 5, 9]])).logits[0].float().tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("draft")
    tiny_llama(71, hidden=SIZE, dtype=torch.bfloat16, spread=0.05).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def variants(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, float]]]:
    found = {}
    for variant in ("int8", "int4", "fp8"):
        out = tmp_path_factory.mktemp(variant)
        found[variant] = out, quantize(source, variant, out, CPU).sizes
    return found


@pytest.mark.long
def test_a_variant_loads_alone_in_a_fresh_process(variants: dict[str, tuple[Path, dict[str, float]]]) -> None:
    """Another process, that never quantized anything, computes the same logits from the directory as one here."""
    paths = [str(path) for path, _ in variants.values()]
    fresh = subprocess.run([sys.executable, "-c", _FRESH, *paths], capture_output=True, text=True, check=True)
    found = json.loads(fresh.stdout.splitlines()[-1])

    for path in paths:
        here = full_logits(load_model(Path(path), "bfloat16", CPU), IDS).float()
        torch.testing.assert_close(here, torch.tensor(found[path]), atol=0, rtol=0)


def test_a_variant_has_the_parameters_of_its_draft(
    source: Path, variants: dict[str, tuple[Path, dict[str, float]]]
) -> None:
    """However the weights are packed, and whatever scales and tables are stored beside them."""
    expected = dict.fromkeys(variants, measure_weights(source).parameters)

    assert expected == {name: measure_weights(path).parameters for name, (path, _) in variants.items()}


@pytest.mark.parametrize(("variant", "error"), [("int8", 0.05), ("int4", 0.35), ("fp8", 0.12)])
def test_a_variant_is_close_to_its_draft(
    source: Path, variants: dict[str, tuple[Path, dict[str, float]]], variant: str, error: float
) -> None:
    """The logits' error, relative to their size, is that of rounding to so many bits, and not none."""
    exact = full_logits(load_model(source, "float32", CPU), IDS)
    rounded = full_logits(load_model(variants[variant][0], "bfloat16", CPU), IDS).float()

    assert 1e-4 < float((rounded - exact).norm() / exact.norm()) < error


@pytest.mark.parametrize(("variant", "share"), [("int8", 0.51), ("int4", 0.275), ("fp8", 0.501)])
def test_sizes_are_those_on_disk(
    source: Path, variants: dict[str, tuple[Path, dict[str, float]]], variant: str, share: float
) -> None:
    """The linear layers, scales included, take half or a quarter of two bytes a weight, and a little for the scales."""
    out, figures = variants[variant]
    model = tiny_llama(71, hidden=SIZE)
    elements = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    elements -= model.lm_head.weight.numel() if variant == "fp8" else 0  # a head of 8-bit floats is no engine's

    assert 2 * elements == figures["linear_bytes_bf16"]
    assert (0.25 if variant == "int4" else 0.5) * figures["linear_bytes_bf16"] < figures["linear_bytes"]
    assert figures["linear_bytes"] <= share * figures["linear_bytes_bf16"]
    assert (out / "model.safetensors").stat().st_size == figures["file_bytes"]
    assert (source / "model.safetensors").stat().st_size == figures["file_bytes_source"]


@pytest.mark.parametrize("variant", ["int8", "int4"])
@pytest.mark.parametrize(("head", "tied"), [(True, False), (False, False), (True, True)])
def test_the_head_is_quantized_where_it_can_be(tmp_path: Path, variant: str, head: bool, tied: bool) -> None:
    """Not where it was not asked for, and not where it is the embedding; what is loaded knows."""
    model = tiny_llama(71, hidden=64, dtype=torch.bfloat16)
    model.config.tie_word_embeddings = tied
    model.tie_weights()
    model.save_pretrained(tmp_path / "draft")
    quantize(tmp_path / "draft", variant, tmp_path / "out", CPU, head=head)
    loaded = load_model(tmp_path / "out", "bfloat16", CPU)

    assert (head and not tied) == (type(loaded.lm_head).__name__ in ("Linear8bitLt", "Linear4bit"))
    assert torch.isfinite(full_logits(loaded, IDS)).all()


@pytest.mark.parametrize(("variant", "blocks"), [("int4", "64 and 32"), ("fp8", "128 and 128")])
def test_some_need_whole_blocks(tmp_path: Path, variant: str, blocks: str) -> None:
    """Layers that are no whole blocks are refused by name, with a remedy, and nothing is written."""
    tiny_llama(1, hidden=96, dtype=torch.bfloat16).save_pretrained(tmp_path / "draft")

    with pytest.raises(
        UnderstudyError,
        match=rf"q_proj has 96 inputs and 96 outputs, but {variant} needs .* {blocks}; remove {variant}",
    ):
        quantize(tmp_path / "draft", variant, tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


def test_a_row_of_int8_does_not_depend_on_its_batch(variants: dict[str, tuple[Path, dict[str, float]]]) -> None:
    """No outlier threshold is stored: with one, which columns are kept in higher precision depends on the batch."""
    stored = json.loads((variants["int8"][0] / "config.json").read_text())["quantization_config"]
    assert 0.0 == stored["llm_int8_threshold"]


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_loaded_of_8_bit_floats(tmp_path: Path, tied: bool) -> None:
    """Each weight is a number of the format times its block's scale, at most one part in 16 off; the rest is as it was."""
    model = tiny_llama(71, hidden=SIZE, dtype=torch.bfloat16)
    model.config.tie_word_embeddings = tied
    model.tie_weights()
    model.save_pretrained(tmp_path / "draft")
    layers = quantize(tmp_path / "draft", "fp8", tmp_path / "out", CPU).layers
    loaded = load_model(tmp_path / "out", "bfloat16", CPU)

    stored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert ("fp8", "dynamic", [128, 128], ["lm_head"]) == tuple(
        stored[name] for name in ("quant_method", "activation_scheme", "weight_block_size", "modules_to_not_convert")
    )
    assert 2 * 7 == len(layers)
    assert "lm_head" not in layers
    for name, weight in load_model(tmp_path / "draft", "bfloat16", CPU).state_dict().items():
        found = loaded.state_dict()[name]
        if name.removesuffix(".weight") in layers:
            near = weight.abs() > weight.abs().max() / 100  # below, what is left of a number has fewer bits
            assert 0 < float((found[near] / weight[near] - 1).abs().max()) < 1 / 15
        else:
            torch.testing.assert_close(found, weight, atol=0, rtol=0)


def test_weights_outside_linear_layers_are_not_for_8_bit_floats(tmp_path: Path) -> None:
    """Experts are one tensor of three dimensions: a loader would take them for 8-bit floats that they are not."""
    family_model("Mixtral").to(torch.bfloat16).save_pretrained(tmp_path / "draft")

    with pytest.raises(UnderstudyError, match=r"mlp\.\S+ is not in a linear layer, and fp8 supports only linear"):
        quantize(tmp_path / "draft", "fp8", tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


def test_each_block_has_its_own_scale() -> None:
    """What its largest weight is over 448, so that this weight is the largest number of the format."""
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(1))
    weight[:128, 128:256] *= 1000
    scales = block_scales(weight)
    coded = to_fp8(weight, scales).float()

    assert (2, 3) == scales.shape
    for o, i in product(range(2), range(3)):
        block = (slice(128 * o, 128 * (o + 1)), slice(128 * i, 128 * (i + 1)))
        torch.testing.assert_close(scales[o, i], weight[block].abs().max() / 448)
        assert 448.0 == float(coded[block].abs().max())


def test_a_quantized_target_generates(variants: dict[str, tuple[Path, dict[str, float]]]) -> None:
    """As it is stored, alone and with its layers on disk where transformers can keep them there."""
    requests = [Request([3, 1, 4], 6, 0), Request([1, 5, 9, 2, 6], 6, 0)]
    for variant, device_map in (("int4", None), ("int8", None), ("int4", "auto"), ("fp8", None), ("fp8", {"": "disk"})):
        target = load_model(variants[variant][0], "bfloat16", CPU, device_map=device_map)
        found = [one.tokens for one in Decoder(target, None, sampling=GREEDY, vocabulary=32).decode(requests)]
        assert [6, 6] == list(map(len, found))
        if variant == "fp8":  # which is dequantized when it is loaded
            whole = load_model(variants[variant][0], "bfloat16", CPU)
            assert [greedy_text(whole, request.prompt, 6, 32) for request in requests] == found

"""A target whose layers lie on several devices, in host memory or on disk: the decoder's tokens are those of the whole model."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.drafts.plain import PlainDraft
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.loading import check_finite, load_model
from pipeline.models.placement import input_device, is_dispatched
from pipeline.speculation.batch import Request
from pipeline.speculation.cache import RaggedCache
from pipeline.speculation.choice import proved_way
from pipeline.speculation.decoder import Decoder
from pipeline.speculation.settings import GREEDY, Sampling
from tests.fakes import add_tensors, change_json, family_model, ragged_requests, tiny_llama

CPU = torch.device("cpu")
MIXED = {
    "model.embed_tokens": "disk",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "disk",
}
MAPS: dict[str, Any] = {"disk": {"": "disk"}, "disk and memory": MIXED, "auto": "auto"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    tiny_llama(3, dtype=torch.float32).save_pretrained(path)
    return path


def _tokens(target: Any, sampling: Sampling, gamma: int = 0) -> list[list[int]]:
    draft = tiny_llama(4, dtype=torch.float32) if gamma else None
    decoder = Decoder(target, PlainDraft(draft, 32), sampling=sampling, vocabulary=32, gamma=gamma)
    return [one.tokens for one in decoder.decode(ragged_requests(4))]


@pytest.fixture(scope="module")
def whole(saved: Path) -> Any:
    return load_model(saved, "float32", CPU)


@pytest.fixture(scope="module", params=MAPS)
def placed(saved: Path, request: pytest.FixtureRequest) -> Any:
    return load_model(saved, "float32", CPU, device_map=MAPS[request.param])


@pytest.mark.parametrize(("sampling", "gamma"), [(GREEDY, 0), (Sampling(), 3)], ids=["greedy", "sampled with a draft"])
def test_tokens_are_those_of_the_whole_model(whole: Any, placed: Any, sampling: Sampling, gamma: int) -> None:
    """Alone and with a draft, for rows of different lengths, of which some end earlier."""
    assert _tokens(whole, sampling, gamma) == _tokens(placed, sampling, gamma)


def test_layers_on_disk_take_no_memory(saved: Path) -> None:
    """They have no device; token ids go where the model computes, and its own forward is used."""
    placed = load_model(saved, "float32", CPU, device_map=MIXED)
    on_disk = {name for name, weight in placed.named_parameters() if weight.is_meta}
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= on_disk
    assert not any(name.startswith("model.layers.0.") for name in on_disk)
    assert (True, CPU) == (is_dispatched(placed), input_device(placed))
    assert "batch" == proved_way(placed, 32)
    check_finite(placed, saved)


def test_another_dtype_than_that_of_the_files(saved: Path) -> None:
    """bfloat16 weights on disk are those of the model in memory."""
    placed = load_model(saved, "bfloat16", CPU, device_map=MIXED)
    assert _tokens(load_model(saved, "bfloat16", CPU), GREEDY) == _tokens(placed, GREEDY)


@pytest.mark.parametrize("family", ["GPTNeoX", "Gemma2"])
def test_other_architectures_on_disk(tmp_path: Path, family: str) -> None:
    """Also with tied embeddings and windows."""
    family_model(family, torch.float32).save_pretrained(tmp_path)
    placed = load_model(tmp_path, "float32", CPU, device_map={"": "disk"})
    whole, requests = load_model(tmp_path, "float32", CPU), [Request([1, 2, 3], 4, 0), Request([4], 4, 0)]
    of_whole, of_placed = (
        [one.tokens for one in Decoder(model, None, sampling=GREEDY, vocabulary=40).decode(requests)]
        for model in (whole, placed)
    )
    assert of_whole == of_placed


def test_a_map_that_lacks_layers_is_named(saved: Path) -> None:
    """Before anything is loaded: transformers would leave them where no other layer finds them."""
    with pytest.raises(
        UsageError, match=r"device_map: it has no place for model\.layers\.0\.self_attn\.q_proj\.weight"
    ):
        load_model(saved, "float32", CPU, device_map={"model.embed_tokens": "cpu", "lm_head": "cpu"})


def test_a_cache_keeps_each_layer_on_its_device() -> None:
    """A layer of another device gets the places to write on that device; here `meta` stands for it."""
    cache = RaggedCache(2, 8)
    cache.set_slots(torch.tensor([[0, 1], [3, 4]]), 5)
    for layer, device in enumerate(("cpu", "meta")):
        states = torch.ones(2, 1, 2, 4, device=device)
        keys, values = cache.update(states, states, layer)
        assert {device} == {keys.device.type, values.device.type}
        assert {device} == {place.device.type for place in cache._place(torch.device(device))}


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors"])
def test_a_quantized_target_that_cannot_be_loaded_here_is_sent_to_a_server(
    saved: Path, tmp_path: Path, method: str
) -> None:
    """One line: the method, what transformers lacks for it, and the API of a server that loads such weights."""
    shutil.copytree(saved, tmp_path / "target")
    entry = {"quant_method": method, "bits": 4, "group_size": 128, "zero_point": True}
    change_json(tmp_path / "target" / "config.json", quantization_config=entry)
    add_tensors(tmp_path / "target", **{"model.layers.0.mlp.up_proj.qweight": torch.ones(1, dtype=torch.int32)})
    with pytest.raises(UnderstudyError, match=r"pair\.target\.source: server.*generate\.server\.api: vllm") as found:
        load_model(tmp_path / "target", "float32", CPU)
    assert f"its weights are quantized ({method}), and transformers cannot load them here: " in str(found.value)
    assert "\n" not in str(found.value)

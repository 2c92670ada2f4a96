"""Which attention the layers of published families have, and of which kinds a pair's are together."""

from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from pipeline.engines.facts import Mixture
from pipeline.models.attention_layers import AttentionLayers, attention_layers, mixture_of


def _config(name: str, **settings: Any) -> Any:
    small = {"num_hidden_layers": 12, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 32}
    return getattr(transformers, f"{name}Config")(**small | settings).get_text_config()


@pytest.mark.parametrize(
    ("config", "by_window", "states"),
    [
        (_config("Llama"), {None: 12}, 0),
        (_config("Mistral", sliding_window=4096), {4096: 12}, 0),
        (_config("Mistral", sliding_window=None), {None: 12}, 0),
        (_config("Phi3", sliding_window=2047), {2047: 12}, 0),
        (_config("Qwen2", sliding_window=512, use_sliding_window=False), {None: 12}, 0),
        (_config("Qwen2", sliding_window=512, use_sliding_window=True, max_window_layers=8), {None: 8, 512: 4}, 0),
        (_config("Gemma2", sliding_window=4096), {4096: 6, None: 6}, 0),
        (_config("Gemma3Text", sliding_window=1024), {1024: 10, None: 2}, 0),
        (_config("GptOss", sliding_window=128), {128: 6, None: 6}, 0),
        (_config("Cohere2", sliding_window=4096), {4096: 9, None: 3}, 0),
        (_config("Olmo3", sliding_window=4096), {4096: 9, None: 3}, 0),
        (_config("Exaone4", sliding_window=4096), {4096: 9, None: 3}, 0),
        (_config("Llama4Text", attention_chunk_size=8192), {8192: 9, None: 3}, 0),
        (_config("Qwen3Next"), {None: 3}, 9),
        (_config("FalconH1"), {None: 12}, 12),
        (_config("Gemma3nText", num_kv_shared_layers=4, sliding_window=512), {512: 7, None: 1}, 0),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_windows_of_layers(config: Any, by_window: dict[int | None, int], states: int) -> None:
    """By `layer_types`, which transformers derives where config.json has none, or by one window for all layers."""
    found = attention_layers(config)
    assert (by_window, states) == (dict(found.by_window), states or found.states)


FULL, WINDOW, OTHER = ({None: 2}, {8: 2}, {4: 2})
BOTH = {8: 3, None: 1}


@pytest.mark.parametrize(
    ("target", "draft", "named", "mixture"),
    [
        (FULL, FULL, True, None),
        (WINDOW, WINDOW, True, None),
        (BOTH, FULL, False, "full_and_windows"),
        (BOTH, WINDOW, True, "full_and_windows"),
        (FULL, BOTH, True, "full_and_windows"),
        (BOTH, BOTH, True, "full_and_windows"),
        (FULL, WINDOW, True, "full_and_windows"),
        (FULL, WINDOW, False, "window_of_draft"),
        (WINDOW, FULL, False, "window_of_target"),
        (WINDOW, BOTH, True, "full_and_windows"),
        (WINDOW, OTHER, True, "several_windows"),
    ],
)
def test_kinds_of_a_pair(
    target: dict[int | None, int], draft: dict[int | None, int], named: bool, mixture: Mixture | None
) -> None:
    """What an engine may need an option for."""
    assert mixture == mixture_of(AttentionLayers(target, 0, True), AttentionLayers(draft, 0, named))


def test_a_layer_with_a_state_is_a_kind_of_its_own() -> None:
    """Whatever the windows are."""
    assert "states" == mixture_of(AttentionLayers(FULL, 1, True), AttentionLayers(FULL, 0, False))


def test_tokens_that_layers_keep() -> None:
    """Those of the window, and all where there is none or where the sequence is shorter."""
    layers = AttentionLayers({8: 3, None: 1}, 0, True)
    assert [4 * 5, 3 * 8 + 100] == [layers.kept(5), layers.kept(100)]
    assert 4 == layers.count


def test_a_config_without_layer_types_or_windows() -> None:
    """Of an older model, or of code that ships with it."""
    assert AttentionLayers({None: 3}, 0, False) == attention_layers(SimpleNamespace(num_hidden_layers=3))

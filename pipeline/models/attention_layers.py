"""To what each layer of a model attends, read from its config: to all tokens before, or to a window of them. Loads no tensor.

A config names kinds of layers in `layer_types`, or has one window for all of them. What it does not show is whether an engine
reads the config as transformers does (`engines/facts.py`).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.engines.facts import Mixture

# Names of a window's size in the config, by the kind of a layer in `layer_types`.
WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# Kinds of layers without keys and values of tokens, and those that have both these and a state.
WITHOUT_CACHE = ("linear_attention", "conv", "moe", "mlp")
_WITH_STATE = ("linear_attention", "conv", "hybrid", "hybrid_sliding")


def attention_windows(config: Any) -> dict[str, int]:
    """The window in tokens of each kind of attention layer that has one, such as {"sliding_attention": 512}. A sliding window
    includes the query's own token. Empty for a model of full attention."""
    kinds = getattr(config, "layer_types", None) or WINDOWS
    sizes = {kind: getattr(config, name, None) for kind, name in WINDOWS.items() if kind in kinds}
    if not getattr(config, "use_sliding_window", True):
        sizes.pop("sliding_attention", None)
    return {kind: size for kind, size in sizes.items() if size}


def windows_without_size(config: Any) -> str | None:
    """The setting of a window in which a token sees nothing: 0, or no size for layers that are named for it."""
    kinds = getattr(config, "layer_types", None)
    for kind, name in WINDOWS.items():
        size, used = getattr(config, name, None), kinds is None or kind in kinds
        if used and (size == 0 or (size is None and kinds is not None and hasattr(config, name))):
            return name
    return None


@dataclass(frozen=True)
class AttentionLayers:
    """The attention layers of a decoder. `by_window`: how many layers with keys and values have which window in tokens, None for
    full attention. `states`: layers with a recurrent state. `are_named`: the config names the kind of each layer."""

    by_window: Mapping[int | None, int]
    states: int
    are_named: bool

    def kept(self, tokens: int) -> int:
        """Tokens that all layers together keep of a sequence, where each drops what is outside its window."""
        return sum(count * min(tokens, window or tokens) for window, count in self.by_window.items())

    @property
    def count(self) -> int:
        """Layers with keys and values."""
        return sum(self.by_window.values())


def attention_layers(text: Any) -> AttentionLayers:
    """The attention layers of a decoder's config. Layers that use the keys and values of an earlier layer are left out."""
    sizes, kinds = attention_windows(text), _kinds(text)
    by_size = Counter(sizes.get(kind) for kind in kinds[: _own_layers(text)] if kind not in WITHOUT_CACHE)
    states = sum(kind in _WITH_STATE for kind in kinds)
    return AttentionLayers(by_size, states, bool(getattr(text, "layer_types", None)))


def attention_configs(text: Any) -> list[Any]:
    """The config of each layer with keys and values of its own: heads may differ from layer to layer (Gemma 4)."""
    kinds = _kinds(text)
    configs = getattr(text, "per_layer_config", None) or [text] * len(kinds)
    own = zip(kinds[: _own_layers(text)], configs, strict=False)
    return [config for kind, config in own if kind not in WITHOUT_CACHE]


def _kinds(text: Any) -> list[str]:
    """The kind of each layer."""
    named = list(getattr(text, "layer_types", None) or [])
    return named or [next(iter(attention_windows(text)), "full_attention")] * int(text.num_hidden_layers)


def _own_layers(text: Any) -> int:
    return int(text.num_hidden_layers) - int(getattr(text, "num_kv_shared_layers", None) or 0)


def mixture_of(target: AttentionLayers, draft: AttentionLayers) -> Mixture | None:
    """The kinds of which the layers of both are; None where all are of one kind, with one window."""
    if target.states or draft.states:
        return "states"
    of_target, of_draft = set(target.by_window), set(draft.by_window)
    if len(of_target | of_draft) == 1:
        return None
    if of_draft == {None} and len(of_target) == 1:
        return "window_of_target"
    if of_target == {None} and len(of_draft) == 1 and not draft.are_named:
        return "window_of_draft"
    return "full_and_windows" if None in of_target | of_draft else "several_windows"

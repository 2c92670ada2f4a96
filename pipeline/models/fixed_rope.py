"""RoPE whose frequencies depend on the longest row of a pass, made independent of it.

longrope (Phi 3 and 4) takes the long factors for all rows once one of them is longer than the original context: the logits of a
row then depend on the rows beside it, and a cache has keys of other frequencies than the text that goes on. vLLM 0.32 fixes the
factors for all texts: the long ones where the longest sequence that is served exceeds the original context. So does this, by the
context of the config, or as `rope_factors` in the config states (`rope_choice.py`). Dynamic NTK scaling changes only beyond the
context: its frequencies are those within it.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pipeline.models.rope_choice import CHOICE

_FIXED = "fixed"  # a type that transformers' `dynamic_rope_update` does not handle, so that nothing is updated


@torch.no_grad()
def fix_rope(model: Any) -> None:
    """Fix the frequencies of `model`, in place. What is fixed already stays as it is."""
    for module, layer_type, kind in _changing(model):
        if kind == "longrope" and _are_long(module.config, layer_type):
            buffer = module.inv_freq if layer_type is None else getattr(module, f"{layer_type}_inv_freq")
            positions = torch.tensor([[_original(module.config, layer_type)]], device=buffer.device)
            named = {} if layer_type is None else {"layer_type": layer_type}
            module(torch.zeros(1, device=buffer.device), positions, **named)  # takes the long factors
        if layer_type is None:
            module.rope_type = _FIXED
        else:
            module.rope_type = module.rope_type | {layer_type: _FIXED}


def note_on_rope(config: Any, whose: str) -> str | None:
    """What to print about a model whose factors `fix_rope` fixes, where engines can be told otherwise."""
    text = config.get_text_config()
    for layer_type, kind in _kinds_in(text):
        if kind == "longrope":
            limit = _original(text, layer_type)
            which, other, reach = (
                ("long", "short", "above") if _are_long(text, layer_type) else ("short", "long", "up to")
            )
            return (
                f"{whose}: its RoPE has two sets of factors (longrope), and the {which} ones are used for texts of every length, "
                f"as vLLM does with a --max-model-len {reach} {limit}; if yours has another, its texts differ: set "
                f"pair.rope_factors to {other}"
            )
    return None


def longest_with_short_factors(text: Any) -> int | None:
    """The longest text in tokens of a decoder, by its config, whose short factors were chosen; None for others."""
    limits = [_original(text, layer_type) for layer_type, kind in _kinds_in(text) if kind == "longrope"]
    return min(limits) if limits and getattr(text, CHOICE, None) == "short" else None


def _changing(model: Any) -> Iterator[tuple[Any, str | None, str]]:
    """Modules with frequencies that change, the kind of layer that they are for (None: all), and how they change."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            if isinstance(kind, str) and (kind == "longrope" or "dynamic" in kind):
                yield module, layer_type, kind


def _kinds_in(text: Any) -> Iterator[tuple[str | None, str]]:
    parameters = getattr(text, "rope_parameters", None) or {}
    for layer_type, section in ((None, parameters), *parameters.items()):
        if isinstance(section, dict) and isinstance(section.get("rope_type"), str):
            yield layer_type, section["rope_type"]


def _original(config: Any, layer_type: str | None) -> int:
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    return int(parameters["original_max_position_embeddings"])


def _are_long(config: Any, layer_type: str | None) -> bool:
    """Whether the long factors are used."""
    chosen = getattr(config, CHOICE, None)
    if chosen in ("short", "long"):
        return bool(chosen == "long")
    return int(config.max_position_embeddings) > _original(config, layer_type)

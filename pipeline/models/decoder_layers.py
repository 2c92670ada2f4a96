"""The decoder layers of a model, where they are one list."""

from typing import Any

from torch import nn


def decoder_layers(model: Any) -> tuple[str, nn.ModuleList] | None:
    """The list of the model's decoder layers, and its name in the model; None if there is no such list."""
    count, decoder = model.config.get_text_config().num_hidden_layers, set(model.get_decoder().modules())
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and module in decoder:
            return name, module
    return None

"""Which variants the sizes of a model's linear layers do not allow, found without loading weights. Does not depend on stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module

from pipeline.config.quantize import QuantizedVariant
from pipeline.errors import UnderstudyError
from pipeline.models.built import read_only_empty_model
from pipeline.quantization.fp8 import BLOCK, quantizable_layers

Sizes = tuple[int, int]  # inputs, outputs

# nf4 has a scale for each 64 inputs; the CPU kernels need whole blocks and multiples of 32 outputs.
_WHOLE: dict[QuantizedVariant, Sizes] = {"int8": (1, 1), "int4": (64, 32), "fp8": (BLOCK, BLOCK)}

_MOST_LEFT = 0.1  # of the weights of the layers


def sizes_fit(variant: QuantizedVariant, inputs: int, outputs: int) -> bool:
    """Whether a layer is made of whole blocks."""
    whole = _WHOLE[variant]
    return inputs % whole[0] == 0 and outputs % whole[1] == 0


def obstacle(variant: QuantizedVariant, layers: Mapping[str, Sizes]) -> str | None:
    """Why a model with these linear layers has no such variant, in one line; None if it has."""
    if not layers:
        return "no linear layer to quantize was found"
    for name, (inputs, outputs) in layers.items():
        if not sizes_fit(variant, inputs, outputs):
            whole = _WHOLE[variant]
            return f"{name} has {inputs} inputs and {outputs} outputs, but {variant} needs multiples of {whole[0]} and {whole[1]}"
    return None


def impossible_variants(directory: Path, trust_remote_code: bool = False) -> dict[QuantizedVariant, str]:
    """The reason by variant that cannot be made of the model in `directory`. Builds the model without its weights.

    Empty if the model cannot be built in this way, as some with code of their own; then quantization itself reports it.
    """
    try:
        model = read_only_empty_model(directory, trust_remote_code)
    except UnderstudyError:  # whatever the code of a model raises without storage
        return {}
    reasons = {}
    for variant in _WHOLE:
        if reason := reason_against(variant, model):
            reasons[variant] = reason
    return reasons


def no_variants() -> dict[QuantizedVariant, str]:
    """As `impossible_variants`, for a head."""
    return dict.fromkeys(_WHOLE, "heads on hidden states are not quantized")


def reason_against(variant: QuantizedVariant, model: Any) -> str | None:
    """Why the built `model` has no such variant, in one line; None if it has."""
    if variant != "fp8":
        return obstacle(variant, _bitsandbytes_layers(model)) or _left_in_bf16(variant, model)
    try:
        layers = quantizable_layers(model)
    except UnderstudyError as error:
        return str(error)
    return obstacle(variant, {name: (layer.in_features, layer.out_features) for name, layer in layers.items()})


def _left_in_bf16(variant: QuantizedVariant, model: Any) -> str | None:
    """A reason where much of the weights is in no linear layer, such as fused experts; embeddings and head are not looked at."""
    outside = {id(part) for part in model.modules() if isinstance(part, nn.Embedding)} | {
        id(model.get_output_embeddings())
    }
    inside = other = 0
    largest: tuple[int, str] = (0, "")
    for name, module in model.named_modules():
        if id(module) not in outside:
            for own, weight in module.named_parameters(recurse=False):
                if isinstance(module, nn.Linear | Conv1D):
                    inside += weight.numel()
                else:
                    other, largest = other + weight.numel(), max(largest, (weight.numel(), f"{name}.{own}"))
    if other <= _MOST_LEFT * (inside + other):
        return None
    share = other / (inside + other)
    return (
        f"{share:.0%} of the weights of its layers are in no linear layer (such as {largest[1]}), so {variant} would leave them "
        "in bf16"
    )


def _bitsandbytes_layers(model: Any) -> dict[str, Sizes]:
    """The layers that transformers replaces by those of bitsandbytes, without the head."""
    kept = get_keys_to_not_convert(model)
    layers: dict[str, Sizes] = {}
    for name, module in model.named_modules():
        if should_convert_module(name, kept):
            if isinstance(module, Conv1D):
                layers[name] = (module.weight.shape[0], module.weight.shape[1])
            elif type(module) is nn.Linear:
                layers[name] = (module.in_features, module.out_features)
    return layers

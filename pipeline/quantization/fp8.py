"""Weights as 8-bit floats (e4m3) with a scale for each block of 128 by 128: the layout of DeepSeek-V3, which transformers, vLLM
and SGLang load (`quant_method: fp8`). Knows no stage.

A GPU that multiplies in FP8 rounds activations too, as it goes. An examination widens the weights to bf16 when it loads them, on
any machine: what it sees is the rounding of the weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.errors import UnderstudyError

BLOCK = 128
_FORMAT = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FORMAT).max


def block_scales(weight_OI: torch.Tensor) -> torch.Tensor:
    """Of each block, (O / 128, I / 128) in fp32: what its largest weight is over the largest number of the format."""
    rows, columns = (size // BLOCK for size in weight_OI.shape)
    blocks = weight_OI.float().view(rows, BLOCK, columns, BLOCK)
    return blocks.abs().amax((1, 3)).clamp_min(torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST


def to_floats(weight_OI: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight in units of its scales, as 8-bit floats."""
    return (weight_OI.float() / spread(scales)).to(_FORMAT)


def spread(scales: torch.Tensor) -> torch.Tensor:
    """A block's scale for each of its weights."""
    return scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def rounded_layers(model: Any) -> dict[str, nn.Linear]:
    """The linear layers of `model` but its head, by name. UnderstudyError for one that keeps weights anywhere else (experts
    are in no linear layer): whoever loads it would take those for 8-bit floats."""
    head = model.get_output_embeddings()
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    known = {id(module.weight) for module in (*layers.values(), head, model.get_input_embeddings())}
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and id(weight) not in known:
            raise UnderstudyError(
                f"{name} is in no linear layer, and fp8 is made of those alone; leave fp8 out of quantize.variants"
            )
    return layers


def save(model: Any, layers: Mapping[str, nn.Linear], out: Path) -> None:
    """Write `model` with `layers`, whose sizes are multiples of 128, as 8-bit floats."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    for name, layer in layers.items():
        scales = block_scales(layer.weight)
        tensors[f"{name}.weight"] = to_floats(layer.weight, scales)
        tensors[f"{name}.weight_scale_inv"] = scales
    model.config.quantization_config = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head"],
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", {"format": "pt"}
    )
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)

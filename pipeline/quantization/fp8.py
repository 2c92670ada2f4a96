"""FP8 weights (e4m3) with a scale for each 128 x 128 block: the layout of DeepSeek-V3, which transformers, vLLM and SGLang load
(`quant_method: fp8`). Does not depend on stages.

GPUs with FP8 matmuls also quantize activations dynamically. The examination dequantizes the weights to bf16 on every machine, so
it measures only the rounding of the weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.errors import UnderstudyError
from pipeline.models.built import is_tied, name_of_head

BLOCK = 128
_FORMAT = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FORMAT).max


def block_scales(weight_OI: torch.Tensor) -> torch.Tensor:
    """The scale of each block, (O / 128, I / 128) in fp32: its largest absolute weight / the largest e4m3 number."""
    rows, columns = (size // BLOCK for size in weight_OI.shape)
    blocks = weight_OI.float().view(rows, BLOCK, columns, BLOCK)
    return blocks.abs().amax((1, 3)).clamp_min(torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST


def to_fp8(weight_OI: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight divided by its scales, in FP8."""
    return (weight_OI.float() / expand_scales(scales)).to(_FORMAT)


def expand_scales(scales: torch.Tensor) -> torch.Tensor:
    """Each block's scale repeated for all its weights."""
    return scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def quantizable_layers(model: Any) -> dict[str, nn.Linear]:
    """The linear layers of `model` except the head, by name. UnderstudyError if other parameters hold weight matrices (such as
    fused experts), because loaders would treat them as FP8."""
    head = model.get_output_embeddings()
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }
    known = {id(module.weight) for module in (*layers.values(), head, model.get_input_embeddings())}
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and id(weight) not in known:
            raise UnderstudyError(
                f"{name} is not in a linear layer, and fp8 supports only linear layers; remove fp8 from quantize.variants"
            )
    return layers


def save(model: Any, layers: Mapping[str, nn.Linear], out: Path) -> None:
    """Write `model` with `layers` (whose sizes are multiples of 128) in FP8."""
    tensors, head = dict(model.state_dict()), name_of_head(model)
    if is_tied(model):
        del tensors[f"{head}.weight"]
    for name, layer in layers.items():
        scales = block_scales(layer.weight)
        tensors[f"{name}.weight"] = to_fp8(layer.weight, scales)
        tensors[f"{name}.weight_scale_inv"] = scales
    model.config.quantization_config = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": [head],
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors", {"format": "pt"}
    )
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)

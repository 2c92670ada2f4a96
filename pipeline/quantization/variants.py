"""Quantized variants of a draft as self-contained checkpoints: INT8 and INT4 by bitsandbytes, FP8. Does not depend on stages.

On CPUs with AVX512-BF16 bitsandbytes repacks 4-bit weights in place at the first forward pass, and a checkpoint saved after that
is silently wrong. Therefore: quantize, save, reload, and only then run a forward pass.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from pipeline.config.quantize import QuantizedVariant
from pipeline.errors import UnderstudyError
from pipeline.models.built import is_tied
from pipeline.models.derived import check_derived, computed
from pipeline.models.loading import load_listed, load_model
from pipeline.models.model_json import read_config
from pipeline.models.saving import own_generation_config, save_model
from pipeline.quantization.block_sizes import reason_against, sizes_fit
from pipeline.quantization.fp8 import quantizable_layers, save
from pipeline.quantization.recovery import round_weights
from pipeline.store.own_files import reads_own_files

# Largest relative distance of logits from those of the draft with rounded weights: far above what other kernels cost (0.02), and
# below what is left where a matrix is another one (1.4). int8 rounds activations too.
_WITHIN: Mapping[QuantizedVariant, float] = {"int8": 0.8, "int4": 0.2, "fp8": 0.2}


class Quantized(NamedTuple):
    """The result of `quantize`."""

    layers: frozenset[str]  # names of the quantized layers
    # linear_bytes, linear_bytes_bf16: these layers after and before; quantized_share: of the parameters; file_bytes,
    # file_bytes_source: all weights
    sizes: dict[str, float]


def quantize(
    source: Path,
    variant: QuantizedVariant,
    out: Path,
    device: torch.device,
    trust_remote_code: bool = False,
    head: bool = True,
    text: Sequence[int] = (),
) -> Quantized:
    """Write the `variant` ("int8", "int4" or "fp8") of the model in `source` to `out`.

    `head`: also quantize the output head, unless it is tied to the embedding or, for int4, its sizes do not fit; never for fp8.
    Embeddings are not quantized. The caller examines the checkpoint reloaded from `out`, never the model in memory. `text`:
    token ids on which it is compared; none: ids of the whole vocabulary. One model at a time is on the device. UnderstudyError
    where the model has no such variant, or where what is loaded from `out` has other logits than rounded weights give.
    """
    modules, parameters = _write(source, variant, out, device, trust_remote_code, head)
    rounded = load_model(source, "bfloat16", device, trust_remote_code)
    round_weights(rounded, variant, modules.keys())
    expected = computed(rounded, text)
    del rounded
    what, remedy = f"{variant} of {source}", f"remove {variant} from quantize.variants"
    check_derived(expected, out, "bfloat16", device, trust_remote_code, what, within=_WITHIN[variant], remedy=remedy)
    elements = sum(modules.values())
    return Quantized(
        frozenset(modules),
        {
            "linear_bytes": float(_bytes(out, set(modules))),
            "linear_bytes_bf16": 2.0 * elements,
            "quantized_share": elements / parameters,
            "file_bytes": float(sum(path.stat().st_size for path in out.glob("*.safetensors"))),
            "file_bytes_source": float(sum(path.stat().st_size for path in source.glob("*.safetensors"))),
        },
    )


def _write(
    source: Path, variant: QuantizedVariant, out: Path, device: torch.device, trust_remote_code: bool, head: bool
) -> tuple[dict[str, int], int]:
    """Write the checkpoint; the weights of each layer that is quantized, and all parameters of the model."""
    whole = load_model(source, "bfloat16", device, trust_remote_code)
    if reason := reason_against(variant, whole):
        raise UnderstudyError(f"{source}: {reason}; remove {variant} from quantize.variants")
    parameters = sum(weight.numel() for weight in whole.parameters())
    if variant == "fp8":
        layers = quantizable_layers(whole)
        own_generation_config(whole)
        save(whole, layers, out)
        return _elements(layers), parameters
    settings, config = _bitsandbytes_config(variant, head and _head_fits(whole, variant)), whole.config
    del whole  # two at once may not fit
    return _quantize_bitsandbytes(source, config, settings, out, device, trust_remote_code), parameters


def _elements(layers: Mapping[str, Any]) -> dict[str, int]:
    return {name: layer.in_features * layer.out_features for name, layer in layers.items()}


def _quantize_bitsandbytes(
    source: Path, config: Any, settings: Any, out: Path, device: torch.device, trust_remote_code: bool
) -> dict[str, int]:
    options = {
        "config": config,  # that of the built model
        "quantization_config": settings,
        "device_map": str(device),
        "dtype": torch.bfloat16,
    }
    model = load_listed(source, read_config(source), None, trust_remote_code, options)
    modules = {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear8bitLt", "Linear4bit")
    }
    save_model(model, out)
    return _elements(modules)


def _head_fits(model: Any, variant: QuantizedVariant) -> bool:
    head = model.get_output_embeddings()
    return (
        not is_tied(model) and isinstance(head, nn.Linear) and sizes_fit(variant, head.in_features, head.out_features)
    )


def _bitsandbytes_config(variant: QuantizedVariant, head: bool) -> Any:
    skipped: list[str] | None = [] if head else None  # None: transformers skips the head
    if variant == "int8":
        # Threshold 0: no outlier columns, because they depend on the rest of the batch.
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0, llm_int8_skip_modules=skipped)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        llm_int8_skip_modules=skipped,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@reads_own_files("written by the same process")
def _tensors(directory: Path) -> dict[str, int]:
    """Bytes of every tensor stored in `directory`."""
    from safetensors import safe_open

    sizes = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_tensor(name)
                sizes[name] = tensor.numel() * tensor.element_size()
    return sizes


def _bytes(directory: Path, linears: set[str]) -> int:
    """Bytes of the quantized weights with their scales, without biases."""
    return sum(
        size
        for name, size in _tensors(directory).items()
        if any(name.startswith(f"{linear}.") for linear in linears) and not name.endswith(".bias")
    )

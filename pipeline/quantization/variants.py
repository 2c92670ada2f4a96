"""Quantized variants of a draft as self-contained checkpoints: INT8 and INT4 by bitsandbytes, FP8. Does not depend on stages.

On CPUs with AVX512-BF16 bitsandbytes repacks 4-bit weights in place at the first forward pass, and a checkpoint saved after that
is silently wrong. Therefore: quantize, save, reload, and only then run a forward pass.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from pipeline.config.quantize import QuantizedVariant
from pipeline.errors import UnderstudyError
from pipeline.quantization.block_sizes import obstacle, sizes_fit
from pipeline.quantization.fp8 import quantizable_layers, save
from pipeline.store.own_files import reads_own_files


class Quantized(NamedTuple):
    """The result of `quantize`."""

    layers: frozenset[str]  # names of the quantized layers
    sizes: dict[
        str, float
    ]  # linear_bytes, linear_bytes_bf16: these layers after and before; file_bytes, file_bytes_source: all weights


def quantize(
    source: Path,
    variant: QuantizedVariant,
    out: Path,
    device: torch.device,
    trust_remote_code: bool = False,
    head: bool = True,
) -> Quantized:
    """Write the `variant` ("int8", "int4" or "fp8") of the model in `source` to `out`.

    `head`: also quantize the output head, unless it is tied to the embedding or, for int4, its sizes do not fit; never for fp8.
    Embeddings are not quantized. The caller examines the checkpoint reloaded from `out`, never the model in memory.
    """
    load_options = {"dtype": torch.bfloat16, "local_files_only": True, "trust_remote_code": trust_remote_code}
    make = _quantize_fp8 if variant == "fp8" else _quantize_bitsandbytes
    modules = make(source, variant, out, device, head, load_options)
    return Quantized(
        frozenset(modules),
        {
            "linear_bytes": float(_bytes(out, set(modules))),
            "linear_bytes_bf16": 2.0 * sum(module.in_features * module.out_features for module in modules.values()),
            "file_bytes": float(sum(path.stat().st_size for path in out.glob("*.safetensors"))),
            "file_bytes_source": float(sum(path.stat().st_size for path in source.glob("*.safetensors"))),
        },
    )


@reads_own_files("a model directory that check_directory has read")
def _quantize_fp8(
    source: Path, variant: QuantizedVariant, out: Path, device: torch.device, head: bool, load_options: dict[str, Any]
) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(source, **load_options)
    layers = quantizable_layers(model)
    _check_blocks(source, variant, layers)
    save(model, layers, out)
    return layers


@reads_own_files("a model directory that check_directory has read")
def _quantize_bitsandbytes(
    source: Path, variant: QuantizedVariant, out: Path, device: torch.device, head: bool, load_options: dict[str, Any]
) -> dict[str, Any]:
    config = AutoConfig.from_pretrained(
        source, **{name: load_options[name] for name in ("local_files_only", "trust_remote_code")}
    )
    settings = _bitsandbytes_config(variant, head and _head_fits(config, variant))
    model = AutoModelForCausalLM.from_pretrained(
        source, quantization_config=settings, device_map=str(device), **load_options
    )
    modules = {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear8bitLt", "Linear4bit")
    }
    _check_blocks(source, variant, modules)
    model.save_pretrained(out)
    return modules


def _check_blocks(source: Path, variant: QuantizedVariant, modules: Mapping[str, Any]) -> None:
    """UnderstudyError where the sizes of the layers do not allow the variant."""
    sizes = {name: (module.in_features, module.out_features) for name, module in modules.items()}
    if reason := obstacle(variant, sizes):
        raise UnderstudyError(f"{source}: {reason}; remove {variant} from quantize.variants")


def _head_fits(config: Any, variant: QuantizedVariant) -> bool:
    return not config.tie_word_embeddings and sizes_fit(variant, config.hidden_size, config.vocab_size)


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

    found = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                tensor = file.get_tensor(name)
                found[name] = tensor.numel() * tensor.element_size()
    return found


def _bytes(directory: Path, linears: set[str]) -> int:
    """Bytes of the quantized weights with their scales, without biases."""
    return sum(
        size
        for name, size in _tensors(directory).items()
        if any(name.startswith(f"{linear}.") for linear in linears) and not name.endswith(".bias")
    )

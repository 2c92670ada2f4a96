"""Checks the files of a model directory before transformers reads them: whether config and weights can be of one model. Reads
headers and no tensor, so it takes milliseconds. Torch-free."""

from pathlib import Path

from pipeline.errors import UsageError
from pipeline.models.files import WEIGHTS, require_regular, weight_files
from pipeline.models.model_json import CONFIG, INDEX, LAYERS, WIDTHS, ModelConfig, find_generation_config, read_config
from pipeline.models.safetensors_header import FLOATS, read_header

_PACKS = ("bitsandbytes", "gptq", "awq")  # methods whose checkpoints have no float for a quantized weight
_PACKED = 16  # numbers that one stored element can hold at most


def check_directory(directory: Path) -> ModelConfig | None:
    """The config of the model in `directory`, which may be a tokenizer without one (None).

    UsageError naming the file and the field that is wrong. transformers builds a model from its config before it looks at
    the weights: with 10^7 layers that takes all memory.
    """
    require_regular(directory)
    find_generation_config(directory)
    if not (directory / CONFIG).exists():
        return None
    config = read_config(directory)
    if (directory / WEIGHTS).is_file() or (directory / INDEX).is_file():
        _compare(directory, config)
    return config


def unsupported(directory: Path, error: Exception, trust_remote_code: bool, files: Path | None = None) -> UsageError:
    """The error for a model of which transformers, by `error`, makes nothing. `files`: where it read the model."""
    file, config = directory / CONFIG, read_config(directory)
    if config.auto_map and not trust_remote_code:
        return not_allowed(file, "the model is computed by code that ships with it (auto_map)")
    why = " ".join(str(error).replace(str(files or directory), str(directory)).split())[:300] or type(error).__name__
    if isinstance(error, KeyError):  # its text is the key alone
        named = [name for name, value in config.model_dump(exclude_unset=True).items() if error.args == (value,)]
        why = f"{named[0]} = {error} is not known" if named else f"KeyError: {why}"
    if why.startswith("Unrecognized configuration class"):  # and then the names of all that there are
        why = f"models of type {config.model_type} are no causal language models"
    return UsageError(f"{file}: unsupported model: {why}; use another one")


def not_allowed(file: Path, what: str) -> UsageError:
    """The error for a model or tokenizer that needs its own code."""
    return UsageError(
        f"{file}: {what}, and no such code is run unless you allow it; read the code, then set pair.trust_remote_code to true "
        "(--trust-remote-code), or use another model"
    )


def _check_quantization(file: Path, config: ModelConfig, packed: bool) -> None:
    """UsageError for a quantization that is not loaded. `packed`: whether some weights are no floats."""
    quantization = config.quantization
    if quantization is None:
        return
    if quantization.method is None:
        raise UsageError(
            f"{file}: quantization_config names no quant_method, as MLX writes it, so transformers and engines cannot "
            "read the weights; take a checkpoint in bfloat16"
        )
    if not packed and quantization.method in _PACKS:
        raise UsageError(
            f"{file}: quantization_config states {quantization.method}, but all weights are floats: a model that was merged or "
            "dequantized may keep the entry; remove it from config.json, or take the quantized weights"
        )


def _compare(directory: Path, config: ModelConfig) -> None:
    tensors = elements = 0
    packed = False
    for file in weight_files(directory):
        header = read_header(file)
        tensors, elements = tensors + len(header), elements + sum(entry.elements for entry in header.values())
        packed = packed or any(entry.dtype not in FLOATS for entry in header.values())
    _check_quantization(directory / CONFIG, config, packed)
    decoder = config.decoder
    limits = dict.fromkeys(LAYERS, (tensors, f"{tensors:,} tensors")) | dict.fromkeys(
        WIDTHS, (_PACKED * elements, f"{elements:,} elements")
    )
    for name, (most, has) in limits.items():
        stated = getattr(decoder, name, None)
        if isinstance(stated, int) and stated > most:
            raise UsageError(
                f"{directory / CONFIG}: {name} is {stated:,}, and the weights have {has}: they are of different models; take "
                "both from where the model was published"
            )

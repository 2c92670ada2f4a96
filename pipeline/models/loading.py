"""Loads models and tokenizers on a device, in a given dtype. Does not depend on stages.

All weights are loaded here: safetensors only, and code shipped with a model runs only with `trust_remote_code`.
"""

import platform
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config
from transformers.utils import logging as transformers_logging

from pipeline.config.pair import DeviceMap
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.directory_checks import check_directory, unsupported
from pipeline.models.files import has_tokenizer
from pipeline.models.loaded_weights import check_loaded
from pipeline.models.memory_plan import require_memory
from pipeline.models.model_json import CONFIG, ModelConfig, read_config
from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.placement import check_covers
from pipeline.store.own_files import reads_own_files

transformers_logging.disable_progress_bar()  # only our own progress bars are shown
transformers_logging.set_verbosity_error()
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the GPU if there is one, else the CPU. UsageError if it is not available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if reason := _unusable(device):
            raise RuntimeError(reason)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device = '{name}' cannot be used here: {str(error).splitlines()[0]}; choose another, such as cpu"
        ) from None
    return device


def _unusable(device: torch.device) -> str | None:
    """Why the device cannot be used, where torch would say it later or in other words; None for others."""
    if device.type == "mps":
        return "Apple's GPUs have no float64, which decoding computes in"
    if device.type != "cuda" or (device.index or 0) < torch.cuda.device_count():
        return None
    count = torch.cuda.device_count()
    if not count:
        return "torch sees no GPU here"
    return (
        f"there {'is 1 GPU' if count == 1 else f'are {count} GPUs'} here, cuda:0{f' to cuda:{count - 1}' * (count > 1)}"
    )


def supports_bf16(device: torch.device) -> bool:
    """Whether the device has bfloat16 matmul units; without them bfloat16 is emulated and slow."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def hardware_class(device: torch.device) -> str:
    """What decides how the device rounds: the GPU's name, or the CPU's architecture, vector units and bfloat16 units."""
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    vectors = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else ""
    return " ".join(filter(None, [device.type, platform.machine(), vectors, "bf16" if supports_bf16(device) else ""]))


@reads_own_files(
    "a model directory that check_directory has read; its weights: tests/unit/models/test_strange_models.py"
)
def load_model(
    path: Path,
    dtype: str,
    device: torch.device,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
) -> Any:
    """Load a causal language model in eval mode. A quantized checkpoint keeps its own dtype. With a `device_map` its layers go
    where that says, each to its place at once, and not to `device`.

    Raises UnderstudyError naming the directory if the weights are missing, damaged, not safetensors or of another config.
    """
    config = check_directory(path) or read_config(path)
    built = check_buildable(path, trust_remote_code)
    if isinstance(device_map, Mapping):
        check_covers(device_map, [name for name, _ in built.named_parameters()])
    require_memory(path, dtype, device, device_map, trust_remote_code)
    scratch = tempfile.TemporaryDirectory() if device_map is not None else None
    placement = _placement(config, device, device_map, scratch)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            dtype="auto" if config.is_quantized else _DTYPES[dtype],  # the dtypes of the checkpoint
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_loaded` says which
            **placement,
        )
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        if is_out_of_memory(error):
            raise
        raise _not_loaded(path, config, device_map, error) from error
    check_loaded(path, [name for name, _ in model.named_parameters()], info)
    if scratch is not None:
        weakref.finalize(model, scratch.cleanup)
    return model.eval() if placement else model.to(device).eval()


def _placement(
    config: ModelConfig,
    device: torch.device,
    device_map: DeviceMap | None,
    scratch: "tempfile.TemporaryDirectory[str] | None",
) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a model that transformers itself places; none for the others. `scratch`: for weights
    that stay on disk and are stored in another form in the files."""
    placement: dict[str, Any] = {}
    if scratch is not None:
        placement = {"device_map": device_map, "offload_folder": scratch.name}
    elif config.is_quantized:
        placement = {"device_map": str(device)}
    quantization = config.quantization_config
    if quantization is not None and quantization.quant_method == "fp8":
        # Dequantize on every machine: some GPUs would otherwise use FP8 kernels and give different results.
        skipped = quantization.modules_to_not_convert
        placement["quantization_config"] = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=skipped)
    return placement


def _not_loaded(path: Path, config: ModelConfig, device_map: DeviceMap | None, error: Exception) -> UnderstudyError:
    """The error for a model that transformers, by `error`, does not load."""
    if config.quantization_config is not None and isinstance(error, ImportError | RuntimeError | ValueError):
        method = config.quantization_config.quant_method
        return UnderstudyError(
            f"{path}: its weights are quantized ({method}), and transformers cannot load them here: {_brief(error)}; install "
            "what is missing, or serve a target (pair.target.source: server, generate.engine: server, generate.server.api: vllm)"
        )
    remedy = "download or copy it again, or use another model"
    if isinstance(device_map, Mapping):
        remedy = "correct pair.target.device_map, or set it to auto"
    return UnderstudyError(f"{path}: cannot be loaded: {_brief(error)}; {remedy}")


def check_buildable(path: Path, trust_remote_code: bool = False) -> Any:
    """The model without memory for its weights: made in milliseconds, before they are read. UsageError for a config of which
    transformers makes no causal language model: another kind of model, or a value that it does not know."""
    config = load_config(path, trust_remote_code)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        raise unsupported(path, error, trust_remote_code) from error


def check_finite(model: Any, path: Path) -> None:
    """UnderstudyError naming the first tensor of the model in `path` with a weight that is NaN or infinite."""
    for name, weight in model.named_parameters():
        if weight.is_meta:  # on disk; `check_logits` sees what comes of it
            continue
        if weight.is_floating_point() and weight.element_size() > 1 and not bool(torch.isfinite(weight).all()):
            wrong = int((~torch.isfinite(weight)).sum())
            raise UnderstudyError(
                f"{path}: {wrong:,} of the {weight.numel():,} weights of {name} are NaN or infinite; save the model "
                "again, or take another checkpoint"
            )


def load_config(path: Path, trust_remote_code: bool = False) -> Any:
    """The config of a model directory, by transformers. UnderstudyError, naming it, for one that does not fit its model type."""
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        raise unsupported(path, error, trust_remote_code) from error


def load_tokenizer(path: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model directory. UnderstudyError if there is none."""
    if path.is_dir() and not has_tokenizer(path):
        # transformers makes an empty tokenizer of the model's kind instead
        raise UnderstudyError(f"{path}: no tokenizer files; copy the tokenizer of the model that it belongs to")
    check_directory(path)  # the config too is read for a tokenizer
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare exceptions for damaged files
        if (path / CONFIG).is_file():
            load_config(path, trust_remote_code)  # whose fault it may be
        raise UnderstudyError(f"{path}: no usable tokenizer: {_brief(error)}; download or copy it again") from error


def _brief(error: Exception) -> str:
    """In one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def dtype_bytes(dtype: str) -> int:
    """Return the bytes per element of a dtype."""
    return int(_DTYPES[dtype].itemsize)

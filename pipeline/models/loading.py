"""Loads models and tokenizers on a device, in a given dtype. Does not depend on stages.

All weights are loaded here: safetensors only, and code shipped with a model runs only with `trust_remote_code`.
"""

import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config, PreTrainedModel
from transformers.utils import logging as transformers_logging

from pipeline.config.pair import DeviceMap
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.built import load_config, read_only_empty_model, require_known_quantization, state_tied
from pipeline.models.directory_checks import check_directory, not_allowed
from pipeline.models.files import has_tokenizer, needed_package, require_regular, tokenizer_files
from pipeline.models.fixed_rope import fix_rope
from pipeline.models.listed_files import ListedFiles, check_own_code
from pipeline.models.memory_plan import require_memory
from pipeline.models.model_json import CONFIG, ModelConfig, code_named_in, read_config, template_of_processor
from pipeline.models.out_of_memory import is_out_of_memory
from pipeline.models.placement import check_covers, is_dispatched
from pipeline.models.tensor_ledger import HeldTensor, check_ledger, missing_member, stored_tensors
from pipeline.store.own_files import reads_own_files

transformers_logging.disable_progress_bar()  # only our own progress bars are shown
transformers_logging.set_verbosity_error()
_SHORTENS = "_adjust_missing_and_unexpected_keys"  # a method of every model, which leaves names out of a report
_shortens_lock = threading.RLock()
_BRIEF = 300  # characters of an error of a library
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: Path,
    dtype: str,
    device: torch.device,
    trust_remote_code: bool = False,
    device_map: DeviceMap | None = None,
) -> Any:
    """Load a causal language model in eval mode. A quantized checkpoint keeps its own dtype. With a `device_map` its layers go
    where that puts them, each to its place at once, and not to `device`.

    Raises UnderstudyError naming the directory if the weights are missing, damaged, not safetensors or of another config.
    """
    config = check_directory(path) or read_config(path)
    require_known_quantization(path, config)
    built = read_only_empty_model(path, trust_remote_code)
    if isinstance(device_map, Mapping):
        check_covers(device_map, [name for name, _ in built.named_parameters()])
    require_memory(path, dtype, device, device_map, trust_remote_code)
    # The dtypes of a quantized checkpoint are its own.
    placement = {"dtype": "auto" if config.is_quantized else _DTYPES[dtype]} | _placement(config, device, device_map)
    model = load_listed(path, config, device_map, trust_remote_code, placement)
    return model.eval() if "device_map" in placement else model.to(device).eval()


@reads_own_files("a model directory that check_directory has read: tests/unit/models/test_strange_models.py")
def load_listed(
    path: Path, config: ModelConfig, device_map: DeviceMap | None, trust_remote_code: bool, options: dict[str, Any]
) -> Any:
    """The model of the listed files of `path`, by `from_pretrained` with `options`, if all its weights are those of the files.
    Raises as `load_model`."""
    stored, files = stored_tensors(path), ListedFiles(path, weights=True, trust_remote_code=trust_remote_code)
    if device_map is not None:  # weights that stay on disk and are stored in another form in the files
        options = options | {"offload_folder": str(files.scratch)}
    try:
        with _reported_in_full() as unused:
            model, info = AutoModelForCausalLM.from_pretrained(
                files.directory,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_ledger` states which
                **options,
            )
    except Exception as error:  # of a stranger's config, transformers raises what it happens upon
        files.close()
        if is_out_of_memory(error):
            raise
        raise _not_loaded(path, config, device_map, stored, error) from error
    if device_map is not None:
        weakref.finalize(model, files.close)
    else:
        files.close()
    info["unexpected_keys"] = unused
    check_ledger(path, stored, _held(model), info, config.is_quantized)
    model.name_or_path = model.config.name_or_path = str(path)
    if not is_dispatched(model):  # of the others, weights in several places are never the same object
        state_tied(model)
    fix_rope(model)
    return model


def _held(model: Any) -> dict[str, HeldTensor]:
    """What the model has, by name: its parameters, and the buffers that are saved."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {
        name: HeldTensor(name in parameters, tensor.is_floating_point(), tuple(tensor.shape))
        for name, tensor in model.state_dict().items()
    }


def _placement(config: ModelConfig, device: torch.device, device_map: DeviceMap | None) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a model that transformers itself places; none for the others."""
    placement: dict[str, Any] = {}
    if device_map is not None:
        placement = {"device_map": device_map}
    elif config.is_quantized:
        placement = {"device_map": str(device)}
    quantization = config.quantization
    if quantization is not None and quantization.quant_method == "fp8":
        # Dequantize on every machine: some GPUs would otherwise use FP8 kernels and give different results.
        skipped = quantization.modules_to_not_convert
        placement["quantization_config"] = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=skipped)
    return placement


def _not_loaded(
    path: Path, config: ModelConfig, device_map: DeviceMap | None, stored: Collection[str], error: Exception
) -> UnderstudyError:
    """The error for a model that transformers, by `error`, does not load."""
    if config.quantization is not None and isinstance(error, ImportError | RuntimeError | ValueError):
        method = config.quantization.method
        return UnderstudyError(
            f"{path}: its weights are quantized ({method}), and transformers cannot load them here: {_brief(error)}; install "
            "what is missing, or serve a target (pair.target.source: server, generate.engine: server, generate.server.api: vllm)"
        )
    remedy = "download or copy it again, or use another model"
    if (absent := missing_member(stored)) is not None:
        return UnderstudyError(f"{path}: {absent} is in no file, and its neighbours are; {remedy}")
    if isinstance(device_map, Mapping):
        remedy = "correct pair.target.device_map, or set it to auto"
    return UnderstudyError(f"{path}: cannot be loaded: {_brief(error)}; {remedy}")


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


def load_tokenizer(path: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model directory. UsageError if there is none."""
    if path.is_dir() and not has_tokenizer(path):
        # transformers makes an empty tokenizer of the model's kind instead
        require_regular(path)
        raise UsageError(f"{path}: no tokenizer files; copy the tokenizer of the model that it belongs to")
    check_directory(path)  # the config too is read for a tokenizer
    if trust_remote_code:
        check_own_code(path)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": True}
    try:
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, **options)
        except Exception:  # the tokenizers library raises bare exceptions for damaged files
            if not (path / CONFIG).is_file():
                raise
            # The fault may be the config's, or of what is left out of it where a model is loaded.
            tokenizer = AutoTokenizer.from_pretrained(path, config=load_config(path, trust_remote_code), **options)
    except UnderstudyError:
        raise
    except Exception as error:
        if not trust_remote_code and (named := code_named_in(path)):
            raise not_allowed(max(named), "the tokenizer is code that ships with it (auto_map)") from error
        remedy = "download or copy it again"
        if (needed := needed_package(path)) is not None:
            file, package = needed
            remedy = (
                f"{file} alone is read with the package {package}: install it, or save the tokenizer as tokenizer.json"
            )
        raise UsageError(f"{path}: no usable tokenizer: {_brief(error)}; {remedy}") from error
    _check_listed(path, tokenizer)
    if not tokenizer.chat_template:
        tokenizer.chat_template = template_of_processor(path)
    return tokenizer


def _check_listed(path: Path, tokenizer: Any) -> None:
    """UnderstudyError for a tokenizer that was read from a file that is in no digest."""
    named = [
        Path(value)
        for value in tokenizer.init_kwargs.values()
        if isinstance(value, str) and value.startswith(str(path))
    ]
    if other := sorted({file for file in named if file.is_file()} - set(tokenizer_files(path))):
        raise UnderstudyError(
            f"{other[0]}: the tokenizer is read from this file, which no digest covers; save the tokenizer again "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...) writes tokenizer.json)"
        )


def _brief(error: Exception) -> str:
    """The error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF].rpartition(' ')[0]} ..."


def dtype_bytes(dtype: str) -> int:
    """Return the bytes per element of a dtype."""
    return int(_DTYPES[dtype].itemsize)


@contextmanager
def _reported_in_full() -> Iterator[set[str]]:
    """What transformers has no place for in the model that is loaded within this context, filled in when it is loaded. Its own
    report leaves out the names that a class of models lists as ignored, and a weight may have such a name: whether it matters is
    decided by the ledger of tensors. UnderstudyError for a version of transformers that does not state it."""
    with _shortens_lock:
        own, unexpected = getattr(PreTrainedModel, _SHORTENS, None), set[str]()
        if own is None:
            raise UnderstudyError(
                f"transformers {version('transformers')} does not report which tensors it left out of a model; install one that "
                "is known to (pip install transformers==5.23.0)"
            )

        def shorten(model: Any, info: Any, *others: Any, **named: Any) -> Any:
            unexpected.update(info.unexpected_keys)
            return own(model, info, *others, **named)

        setattr(PreTrainedModel, _SHORTENS, shorten)
        try:
            yield unexpected
        finally:
            setattr(PreTrainedModel, _SHORTENS, own)

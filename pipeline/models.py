"""Load, check and measure models and tokenizers. Knows no stage.

The only way weights enter this project: safetensors, and no code shipped with a model unless the user asked for it.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, FineGrainedFP8Config
from transformers.utils import logging as transformers_logging

from pipeline.errors import UnderstudyError, UsageError

transformers_logging.disable_progress_bar()  # a bar per loaded file drowns our own progress
transformers_logging.set_verbosity_error()
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device called `name`; `auto` takes a GPU where there is one. UsageError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device = '{name}' cannot be used here: {str(error).splitlines()[0]}") from None
    return device


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16: elsewhere it is emulated, slowly."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))


def load_model(path: Path, dtype: str, device: torch.device, trust_remote_code: bool = False) -> Any:
    """A causal language model in eval mode. A quantised directory keeps its own number format.

    Raises UnderstudyError naming the directory if the weights are missing, damaged or not safetensors.
    """
    quantisation: dict[str, Any] = read_model_config(path).get("quantization_config") or {}
    quantised = bool(quantisation)
    placement: dict[str, Any] = {"device_map": str(device)} if quantised else {}
    if quantisation.get("quant_method") == "fp8":
        # Else a GPU of some generations would fetch kernels to multiply in it, and examine another draft than any other machine.
        skipped = quantisation.get("modules_to_not_convert")
        placement["quantization_config"] = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=skipped)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path,
            dtype="auto" if quantised else _DTYPES[dtype],  # as it would load anywhere else
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            **placement,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UnderstudyError(f"{path}: cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return model.eval() if quantised else model.to(device).eval()


def load_tokenizer(path: Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model directory. UnderstudyError if there is none."""
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare exceptions for damaged files
        raise UnderstudyError(f"{path}: no usable tokenizer: {' '.join(str(error).split())[:300]}") from error


def read_model_config(path: Path) -> dict[str, Any]:
    """`config.json` as it lies on disk."""
    return _read_object(path / "config.json")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnderstudyError(f"{path}: cannot be read: {error}") from None
    return content


@dataclass(frozen=True)
class Weights:
    """What the headers of the safetensors files say."""

    parameters: int
    bytes: int


def measure_weights(path: Path) -> Weights:
    """Count parameters and bytes without loading a tensor (a safetensors header is JSON behind its 8-byte length)."""
    parameters = size = 0
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            try:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
            except (struct.error, json.JSONDecodeError, UnicodeDecodeError, MemoryError, OverflowError):
                raise UnderstudyError(f"{file}: not a whole safetensors file") from None
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                count = 1
                for extent in entry["shape"]:
                    count *= extent
                parameters, size = parameters + count, size + end - begin
        if file.stat().st_size != 8 + length + max(
            (e["data_offsets"][1] for n, e in header.items() if n != "__metadata__"), default=0
        ):
            raise UnderstudyError(f"{file}: truncated")
    return Weights(parameters, size)


@dataclass(frozen=True)
class Shape:
    """What of a model's config the pair needs to know."""

    logits_width: int  # the vocabulary, often padded beyond the tokenizer's
    context: int  # most tokens of a sequence
    cache_elements_per_token: int  # keys and values of one token of one sequence


def read_shape(path: Path, trust_remote_code: bool = False) -> Shape:
    """The shape of the decoder in a model directory; for a multimodal model, of its text part.

    A sliding window limits the context: within it, sliding and full attention are the same.
    Raises UnderstudyError for a model that is not a transformer with key-value heads, or whose config cannot be read.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        elements = int(2 * text.num_hidden_layers * heads * width)
    except (OSError, ValueError, AttributeError, ImportError) as error:
        raise UnderstudyError(f"{path}: not a model this can use: {' '.join(str(error).split())[:300]}") from error
    context = getattr(text, "max_position_embeddings", None) or 2**31
    window = getattr(text, "sliding_window", None)
    if window and getattr(text, "use_sliding_window", True):
        context = min(context, window)
    return Shape(int(text.vocab_size), int(context), elements)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number."""
    return int(_DTYPES[dtype].itemsize)


def check_same_family(target: Any, draft: Any) -> list[str]:
    """Compare two tokenizers. Returns differences that are legal and reported: EOS, pad, chat template.

    Raises UnderstudyError naming a token if any text could be tokenised differently: a draft of another family can
    never agree with its target.
    """
    theirs, ours = target.get_vocab(), draft.get_vocab()
    if theirs != ours:
        token = min((theirs.keys() ^ ours.keys()) or {t for t in theirs if theirs[t] != ours[t]})
        raise UnderstudyError(
            f"draft and target are not of one family: token {token!r} is {_id(theirs, token)} for the target and "
            f"{_id(ours, token)} for the draft ({len(theirs)} and {len(ours)} tokens); choose a draft with the target's tokenizer"
        )
    if (difference := split_difference(target, draft)) is not None:
        raise UnderstudyError(
            f"draft and target share a token list but split text differently ({difference}); choose a draft with the target's "
            "tokenizer"
        )
    return legal_differences(target, draft)


def legal_differences(target: Any, draft: Any) -> list[str]:
    """What two tokenizers of one family may differ in: the target's is used, and that is reported."""
    return [
        f"{name}: the target's {getattr(target, name)!r} is used, the draft's was {getattr(draft, name)!r}"
        for name in ("eos_token", "pad_token", "chat_template")
        if getattr(target, name) != getattr(draft, name)
    ]


def split_difference(target: Any, draft: Any) -> str | None:
    """Why two tokenizers may cut one text into different tokens; None where nothing says so."""
    split = next((one for one, other in zip(_merges(target), _merges(draft), strict=False) if one != other), None)
    if split is not None:
        return f"merge {split} of the target has another rank in the draft"
    probe = "def f(x):\n\treturn  [1234, 'äöü', \"漢字\"]  # ok 🙂 \r\n"
    same = target(probe)["input_ids"] == draft(probe)["input_ids"]
    return None if same else "another normaliser or special tokens"


def _merges(tokenizer: Any) -> list[Any]:
    """The merge rules of a BPE in order of rank; none where the tokenizer is of another kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return list(json.loads(backend.to_str())["model"].get("merges") or []) if backend is not None else []


def _id(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"


def stop_token_ids(path: Path, tokenizer: Any) -> list[int]:
    """The ids that end a completion: those of the generation config, and the tokenizer's EOS."""
    found: set[int] = set()
    generation = path / "generation_config.json"
    if generation.exists():
        listed: Any = _read_object(generation).get("eos_token_id")
        found |= set(listed) if isinstance(listed, list) else {listed}
    return sorted(token for token in found | {tokenizer.eos_token_id} if token is not None)

"""Gives a checkpoint's embedding and head as many rows as the target has logits.

Some engines refuse a draft whose vocabulary size differs from the target's, although the columns behind the tokenizer's last
token are padding in both. A row of padding must never be drafted. A row of zeros gives the logit 0, which is the largest where
all others are negative. The mean of the tokens' rows gives the mean of their logits: never above the largest, so it is never
the argmax (of equal logits, the first is chosen), and its probability is at most 1 / tokens, in practice far less.
A head with a bias gets a bias that makes the probability 0.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pipeline.errors import UsageError
from pipeline.models.built import read_only_empty_model
from pipeline.models.derived import check_derived, computed
from pipeline.models.files import weight_files
from pipeline.models.loading import load_model
from pipeline.models.model_json import INDEX, INDEX_FORMAT, config_values
from pipeline.models.safetensors_header import FLOATS
from pipeline.models.tensor_ledger import stored_tensors
from pipeline.store.files import write_json
from pipeline.store.own_files import reads_own_files

_DTYPE = "bfloat16"  # in which logits are compared
_COMPARED = 64  # tokens
_NEVER = -1e4  # a bias; float16 holds it


def resize_rows(directory: Path, tokens: int, width: int, trust_remote_code: bool = False) -> bool:
    """Give the model in `directory` logits of `width` columns, in place; whether something was changed.

    `tokens`: how many of its first rows belong to tokens of the pair. UsageError for a head whose rows are quantized.
    """
    config = config_values(directory)
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    if text["vocab_size"] == width:
        return False
    known, device = int(text["vocab_size"]), torch.device("cpu")
    names = _vocabulary_tensors(directory, trust_remote_code)
    _check_rows(directory, names, known, width)
    kept = min(tokens, width)
    before = computed(load_model(directory, _DTYPE, device, trust_remote_code), _ids_below(kept))
    for path in weight_files(directory):
        _resize_file(path, names, tokens, width)
    text["vocab_size"] = width
    if "vocab_size" in config:
        config["vocab_size"] = width
    write_json(directory / "config.json", config)
    if (directory / INDEX).is_file():
        index = INDEX_FORMAT.read(directory / INDEX).model_dump(exclude_unset=True)
        total = sum(path.stat().st_size for path in weight_files(directory))
        write_json(directory / INDEX, index | {"metadata": {**(index.get("metadata") or {}), "total_size": total}})
    what = f"the draft with {width} columns of logits"
    check_derived(before, directory, _DTYPE, device, trust_remote_code, what, columns=kept)
    return True


def _ids_below(tokens: int) -> list[int]:
    """Some, which the model has before and after."""
    return [number * tokens // _COMPARED for number in range(_COMPARED)]


def padding_rows(rows_VH: torch.Tensor, tokens: int, count: int) -> torch.Tensor:
    """(count, H): rows that no hidden state prefers to every row of a token."""
    mean_H = rows_VH[:tokens].double().mean(0).to(rows_VH.dtype)
    return mean_H.repeat(count, 1)


def _vocabulary_tensors(directory: Path, trust_remote_code: bool) -> frozenset[str]:
    """Names of the tensors that have a row for each token: embedding, head and the head's bias."""
    model = read_only_empty_model(directory, trust_remote_code)
    parts = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    names = [name for name, module in model.named_modules() if id(module) in parts]
    return frozenset(f"{name}.{tensor}" for name in names for tensor in ("weight", "bias"))


@reads_own_files("a model directory that check_directory has read")
def _resize_file(path: Path, names: frozenset[str], tokens: int, width: int) -> None:
    with safe_open(path, framework="pt") as file:
        present = set(file.keys())
        if not present & names:
            return
        tensors = {name: file.get_tensor(name) for name in present}
        metadata = file.metadata()
    for name in sorted(present & names):
        tensor = tensors[name]
        tensors[name] = _resized(tensor, tokens, width)
    save_file(tensors, path, metadata)


def _check_rows(directory: Path, names: frozenset[str], known: int, width: int) -> None:
    for name, entry in stored_tensors(directory).items():
        if name in names and (entry.dtype not in FLOATS or entry.shape[0] != known):
            raise UsageError(
                f"{name} is quantized, so it cannot get {width} rows; quantize again with quantize.output_head false"
            )


def _resized(tensor: torch.Tensor, tokens: int, width: int) -> torch.Tensor:
    kept, missing = tensor[:width], max(0, width - len(tensor))
    if tensor.ndim == 1:  # a bias
        return torch.cat([kept, torch.full((missing,), _NEVER, dtype=tensor.dtype)]).contiguous()
    return torch.cat([kept, padding_rows(tensor, tokens, missing)]).contiguous()

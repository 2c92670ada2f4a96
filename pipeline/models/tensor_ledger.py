"""A ledger of tensors: whether a loaded model has the weights of its files, all of them, as the numbers that they are, and no
others. Loads nothing.

transformers takes random numbers for what the files lack, leaves out what the model has no place for, and takes integers and FP8
numbers as they are where it has no entry for their scales: each gives a model that looks like any other.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypedDict

from pipeline.errors import UsageError
from pipeline.models.files import other_weight_files, weight_files
from pipeline.models.model_json import CONFIG, CONFIG_FORMAT
from pipeline.models.safetensors_header import FLOATS, TensorEntry, read_header, tensor_bytes

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, or of an expert
_INTEGERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")

# Modules outside of the decoder's layers in published checkpoints, by which no logits of text are computed.
_OTHER_PARTS = re.compile(
    r"""
    mtp | mtp_\w+ | nextn\w* | multi_token_prediction                         # layers that predict several tokens
    | visual | vision\w* | (image|img|audio|speech|mm)_\w+                    # other senses
    | multi_?modal_projector | embed_vision | embed_audio | talker | token2wav | code2wav
    | pooler | seq_relationship | v_head                                      # other tasks, a value function
    """,
    re.VERBOSE,
)
# Tensors that are computed from the config, at any place.
_COMPUTED = re.compile(
    r"""
    (^|\.)rotary_emb(_\w+)?\.((cos|sin)(_cached?)?|freqs(_\w+)?)$ | (^|\.)\w*inv_freq$ | (^|\.)rope\.freqs$
    | (attn|attention)\.(masked_bias|causal_mask)$ | (^|\.)position_ids$      # masks and positions; also `_MASKS`
    | (^|\.)embed_positions\.(weights|_float_tensor)$ | (^|\.)num_batches_tracked$
    | ^(model\.)?(en|de)coder\.version$
    """,
    re.VERBOSE,
)
_OF_CACHE = re.compile(r"(^|\.)((k|v|kv|q|prob)_scale|[kvq]_proj\.output_scale)$")  # one number, of an FP8 KV cache
_MASKS = re.compile(r"(attn|attention)\.bias$")
_SEVERAL_TOKENS = re.compile(r"\.(eh_proj|enorm|hnorm|shared_head|embed_tokens|mtp\w*|nextn\w*|token_embedding)\b")
_OF_ACTIVATIONS = re.compile(r"(^|[._])(input|act|activation)(_global)?_scale$")
_LEARNT_BUFFERS = re.compile(r"(^|\.)(e_score_correction_bias|expert_bias|layer_scalar|tid2eid)$")


class LoadingInfo(TypedDict):
    """What `from_pretrained(..., output_loading_info=True)` returns beside the model; names of tensors, and their shapes in the
    file and in the model. `unexpected_keys`: all of them (`loading.py`)."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Iterable[tuple[str, Collection[int], Collection[int]]]


@dataclass(frozen=True)
class HeldTensor:
    """A tensor of the loaded model: whether it is a parameter (or a buffer), and floats (or integers)."""

    is_parameter: bool
    is_float: bool
    shape: tuple[int, ...]


class StoredTensors(dict[str, TensorEntry]):
    """Tensors of a model by name. Their numbers are read only where they decide something."""

    def __init__(self, entries: Mapping[str, TensorEntry], files: Mapping[str, Path]) -> None:
        super().__init__(entries)
        self._files = files

    def file(self, name: str) -> Path:
        return self._files[name]

    def is_zero(self, name: str) -> bool:
        return not any(any(chunk) for chunk in tensor_bytes(self._files[name], self[name]))

    def are_equal(self, name: str, other: str) -> bool:
        """Whether one of the two can stand for both."""
        return _are_equal(self._files[name], self[name], self._files[other], self[other])


def stored_tensors(path: Path) -> StoredTensors:
    """The tensors of all files of the model in `path`. UsageError for a name that stands for other numbers in a second file, also
    of those that only engines read: one of the two would be used."""
    entries, files = dict[str, TensorEntry](), dict[str, Path]()
    files_of_model = weight_files(path)
    for file in (*files_of_model, *other_weight_files(path)):
        header = read_header(file)
        for name in sorted(entries.keys() & header.keys()):
            if not _are_equal(files[name], entries[name], file, header[name]):
                raise UsageError(
                    f"{file}: {name} is in {files[name].name} too, with other numbers, and only one can be used; take the files "
                    "from where the model was published"
                )
        if file in files_of_model:
            entries.update(header)
            files.update(dict.fromkeys(header, file))
    return StoredTensors(entries, files)


def missing_member(names: Collection[str]) -> str | None:
    """A tensor that most experts of a layer have, and one lacks; None where all have the same."""
    numbers, tensors = dict[str, set[int]](), dict[str, set[int]]()
    for name in names:
        parts = name.split(".")
        if places := [at for at, part in enumerate(parts) if part.isdigit() and parts[at - 1] == "experts"]:
            at = places[-1]
            own = ".".join((*parts[:at], "{}", *parts[at + 1 :]))
            numbers.setdefault(".".join(parts[:at]), set()).add(int(parts[at]))
            tensors.setdefault(own, set()).add(int(parts[at]))
    for own, present in sorted(tensors.items()):
        absent = numbers[own.partition(".{}")[0]] - present
        if absent and len(absent) < len(present):
            return own.format(min(absent))
    return None


def _are_equal(file: Path, entry: TensorEntry, other_file: Path, other: TensorEntry) -> bool:
    if (entry.dtype, entry.shape) != (other.dtype, other.shape):
        return False
    pairs = zip(tensor_bytes(file, entry), tensor_bytes(other_file, other), strict=True)
    return all(twin == its_twin for twin, its_twin in pairs)


def check_ledger(
    path: Path, stored: StoredTensors, held: Mapping[str, HeldTensor], info: LoadingInfo, quantized: bool
) -> None:
    """UsageError naming the first tensor of the model in `path` by which the loaded model is not the one in the files.

    `stored`: the tensors of its files; `held`: those of the loaded model; `quantized`: whether transformers' quantizer took part.
    """
    for name, in_file, built in sorted(info["mismatched_keys"]):
        raise _differ(path, f"{name} has the shape {_shape(built)} by the config and {_shape(in_file)} in the file")
    if missing := sorted(name for name in info["missing_keys"] if _is_learnt(name, held)):
        raise _absent(path, missing, stored)
    parameters = [name for name, tensor in held.items() if tensor.is_parameter]
    if unread := _unread_layers(parameters, info["unexpected_keys"]):
        raise _differ(path, f"{len(unread):,} tensors are of more layers than the config has, such as {unread[0]}")
    unused = sorted(name for name in info["unexpected_keys"] if not _is_harmless(name, stored, held, quantized))
    if unused:
        raise _lost(path, stored, unused)
    taken = stored.keys() - set(info["unexpected_keys"])
    for name, twin in _two_names(taken, held):
        if not stored.are_equal(name, twin):
            raise UsageError(
                f"{path}: {name} and {twin} are both stored, with other numbers, and the model has one place for them; take the "
                "files from where the model was published"
            )
    for name in sorted(name for name in taken if stored[name].dtype not in FLOATS):
        if not _is_taken_as_it_is(stored[name], name, held) and not (quantized and _companions(name, taken)):
            raise _other_numbers(path, stored, name)


def _two_names(taken: Set[str], held: Mapping[str, HeldTensor]) -> Iterator[tuple[str, str]]:
    """Tensors under their own names, and under their names without the model's prefix, which transformers adds."""
    prefixes = {name.partition(".")[0] for name in held}
    for name in sorted(taken - held.keys()):
        yield from ((name, whole) for prefix in prefixes if (whole := f"{prefix}.{name}") in held and whole in taken)


def _is_learnt(name: str, held: Mapping[str, HeldTensor]) -> bool:
    """Whether nothing but a file can have the numbers: not so of buffers that are computed."""
    return name in held and (held[name].is_parameter or _LEARNT_BUFFERS.search(name) is not None)


def _unread_layers(parameters: Collection[str], unexpected: Collection[str]) -> list[str]:
    """Tensors of layers that are of the form of the model's own. A layer that predicts several tokens has others too."""
    known, names_by_layer = {_NUMBER.sub("0", name, count=1) for name in parameters}, _by_layer(unexpected)
    of_its_form = [
        names for names in names_by_layer.values() if all(_NUMBER.sub("0", name, count=1) in known for name in names)
    ]
    return [name for names in of_its_form for name in names if name not in parameters]


def _by_layer(names: Collection[str]) -> dict[str, list[str]]:
    by_number = dict[str, list[str]]()
    for name in sorted(names):
        if (number := _NUMBER.search(name)) is not None:
            by_number.setdefault(name[: number.end()], []).append(name)
    return by_number


def _is_harmless(name: str, stored: StoredTensors, held: Mapping[str, HeldTensor], quantized: bool) -> bool:
    """Whether the logits of text are the same without this tensor, which the model has no place for."""
    own = next((other for other in (name, *_ends_of(name)) if other in stored), None)
    sizes = stored[own].shape if own is not None else None
    if (
        _MASKS.search(name) and sizes is not None and len(sizes) == 4
    ):  # rows and columns of positions; a bias has one row
        return True
    if _OF_CACHE.search(name):
        return sizes is not None and math.prod(sizes) == 1
    if name.endswith(".bias") and own is not None and stored.is_zero(own):  # of GPTQ, whose layers have all a bias
        return True
    outside = takewhile(lambda part: not part.isdigit(), name.split("."))
    if _COMPUTED.search(name) or any(_OTHER_PARTS.fullmatch(part) for part in outside):
        return True
    return (quantized and _OF_ACTIVATIONS.search(name) is not None) or _is_in_further_layer(name, stored, held)


def _ends_of(name: str) -> Iterator[str]:
    """The name as it may be stored: without the prefix that transformers adds."""
    while name := name.partition(".")[2]:
        yield name


def _is_in_further_layer(name: str, stored: Mapping[str, TensorEntry], held: Mapping[str, HeldTensor]) -> bool:
    """Whether it is of a layer behind those of the model, which predicts several tokens."""
    number = _NUMBER.search(name)
    layer = name[: number.end()] + "." if number is not None else None
    if layer is None or any(own.startswith(layer) for own in held):
        return False
    return any(_SEVERAL_TOKENS.search(other) for other in stored if other.startswith(layer))


def _is_taken_as_it_is(entry: TensorEntry, name: str, held: Mapping[str, HeldTensor]) -> bool:
    """Whether the model has a tensor of such integers, under this name or, renamed, at another place. Numbers of FP8 and less are
    never weights as they are."""
    if entry.dtype not in _INTEGERS:
        return False
    if (own := held.get(name)) is not None:
        return not own.is_float
    last = name.rpartition(".")[2]
    alike = (tensor for other, tensor in held.items() if other.rpartition(".")[2] == last)
    return any(not tensor.is_float and tensor.shape == tuple(entry.shape) for tensor in alike)


def _companions(name: str, names: Collection[str]) -> list[str]:
    """Tensors that stand beside `name`: of the same module, without its bias."""
    module, _, last = name.rpartition(".")
    own = f"{last}."  # such as `weight.absmax`
    inner = {other: other.removeprefix(f"{module}.") for other in names if other.startswith(f"{module}.")}
    return sorted(
        other
        for other, rest in inner.items()
        if rest not in (last, "bias") and (rest.startswith(own) or "." not in rest)
    )


def _lost(path: Path, stored: Mapping[str, TensorEntry], unused: list[str]) -> UsageError:
    first = unused[0]
    beside = _companions(first, stored)
    said = f", beside {beside[0]} ({stored[beside[0]].dtype})" if beside else ""
    form = f" ({stored[first].dtype}, {_shape(stored[first].shape)})" if first in stored else ""
    # A float alone is a weight that the config does not have, such as a bias; with others it is part of a packed one.
    is_weight = first in stored and {stored[name].dtype for name in (first, *beside)} <= {*FLOATS}
    remedy = (
        f"let config.json state the part that has them; {_SOURCE}" if is_weight and not _is_scale(first) else _REMEDY
    )
    return UsageError(
        f"{path}: {len(unused):,} tensors of its files would not be used, such as {first}{form}{said}: without them it is "
        f"another model; {remedy}{_saved_as(path)}"
    )


def _is_scale(name: str) -> bool:
    return "scale" in name.rpartition(".")[2]


def _absent(path: Path, missing: list[str], stored: Mapping[str, TensorEntry]) -> UsageError:
    """The message for tensors of the model that no file has. A wrapper around a model puts parts into the names of its
    tensors."""
    first = missing[0]
    for name in missing:
        if (inside := next((other for other in stored if _is_longer(other, name)), None)) is not None:
            return UsageError(
                f"{path}: {len(missing):,} tensors of the config are in no file, such as {name}: the files have {inside}, as of "
                "a model inside of another one (of torch.compile, DistributedDataParallel, FSDP, PEFT, or a multimodal one); "
                "save the inner model, with adapters merged, or give the tensors the names of the config"
            )
    how = f"{len(missing):,} tensors of the config are in no file, such as {first}"
    return _differ(path, how, _saved_as(path))


def _is_longer(name: str, short: str) -> bool:
    """Whether `name` is `short` with further parts at one place."""
    parts, own = name.split("."), short.split(".")
    extra = len(parts) - len(own)
    return extra > 0 and any(parts[:at] + parts[at + extra :] == own for at in range(len(own)))


def _saved_as(path: Path) -> str:
    """A note on the class that the model was saved as, where it is none that writes text."""
    config = CONFIG_FORMAT.find(path / CONFIG)
    for name in (config.architectures if config is not None else None) or ():
        if not name.endswith(_WRITES_TEXT):
            return f" (config.json declares a {name}, which is no whole model that writes text)"
    return ""


def _other_numbers(path: Path, stored: Mapping[str, TensorEntry], name: str) -> UsageError:
    beside = _companions(name, stored)
    said = f"{beside[0]} stands beside it" if beside else "no scale stands beside it"
    return UsageError(
        f"{path}: {name} is {stored[name].dtype} and {said}, but nothing here turns it into the weight that it stands for; "
        f"{_REMEDY}"
    )


_SOURCE = "take both from where the model was published"
_WRITES_TEXT = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")  # ends of names of classes
_REMEDY = (
    "serve it by an engine that reads this form (pair.target.source: server, generate.engine: server), or take a checkpoint in "
    "bfloat16, or one that transformers reads as a whole"
)


def _shape(sizes: Collection[int]) -> str:
    return " x ".join(map(str, sizes)) or "of one number"


def _differ(path: Path, how: str, note: str = "") -> UsageError:
    return UsageError(f"{path / CONFIG}: it does not describe the weights beside it: {how}; {_SOURCE}{note}")

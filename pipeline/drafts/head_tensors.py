"""The tensors of a head's files: all of them, and no other than the head has; and what of them a pair states."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig

from pipeline.drafts.head_config import Eagle3Config, head_of, kind_of, read_eagle3
from pipeline.drafts.kinds import EAGLE3, MEDUSA, KindName
from pipeline.errors import UnderstudyError, UsageError
from pipeline.models.built import load_config
from pipeline.models.directory_checks import unsupported
from pipeline.models.files import licence, model_digest, weight_files
from pipeline.models.loading import dtype_bytes
from pipeline.models.model_json import CONFIG
from pipeline.models.pair_facts import check_sizes
from pipeline.models.safetensors_header import FLOATS
from pipeline.models.shape import Shape, Weights, measure_weights
from pipeline.models.step_shape import step_shape
from pipeline.models.tensor_ledger import stored_tensors
from pipeline.store.own_files import reads_own_files

_CPU, _META = torch.device("cpu"), torch.device("meta")
_MAPS = frozenset({"d2t", "t2d", "token_map"})  # which of the target's tokens a head has


@reads_own_files("files whose headers stored_tensors has checked")
def read_tensors(directory: Path, device: torch.device = _CPU) -> dict[str, torch.Tensor]:
    """The tensors by name, in host memory; for the device `meta` shapes alone, but for the maps of a vocabulary.
    UnderstudyError for files that are damaged, or no safetensors."""
    tensors = dict[str, torch.Tensor]()
    for name, entry in stored_tensors(directory).items() if device == _META else ():
        tensors[name] = torch.empty(entry.shape, device=_META)
    for file in weight_files(directory):
        with safe_open(file, "pt") as opened:
            names = opened.keys()
            wanted = [name for name in names if device != _META or name.removeprefix("model.") in _MAPS]
            tensors |= {name: opened.get_tensor(name) for name in wanted}
    return tensors


def measure_draft(directory: Path, trust_remote_code: bool = False) -> Weights:
    """`models.shape.measure_weights` for a draft of any kind."""
    if not kind_of(directory).reads_states:
        return measure_weights(directory, trust_remote_code)
    entries = stored_tensors(directory).values()
    return Weights(
        sum(entry.elements for entry in entries if entry.dtype in FLOATS), sum(entry.bytes for entry in entries)
    )


def require_smaller(target: Path, draft: Path, trust_remote_code: bool = False) -> None:
    """UsageError for a draft of any kind that is larger than its target."""
    sizes = {"target": measure_weights(target, trust_remote_code), "draft": measure_draft(draft, trust_remote_code)}
    check_sizes({role: {"parameters": weights.parameters} for role, weights in sizes.items()})


@contextmanager
def layers_of(directory: Path) -> Iterator[None]:
    """Inside, whatever transformers raises on a stranger's config becomes a UsageError that names the head's."""
    try:
        yield
    except UnderstudyError:
        raise
    except Exception as error:
        raise unsupported(directory, error, trust_remote_code=False) from error


def layer_config(head: Eagle3Config) -> Any:
    """transformers' config of the head's layers: what config.json does not state is its default, as engines take it."""
    sizes = {name: value for name, value in head.layer.items() if name != "model_type"}
    config: Any = AutoConfig.for_model(head.layer["model_type"], **sizes)
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config


def _cached_by_eagle3(directory: Path) -> int:
    """Keys and values of a token, numbers."""
    with layers_of(directory):
        layer = layer_config(read_eagle3(directory))
    return int(2 * layer.num_hidden_layers * layer.num_key_value_heads * layer.head_dim)


_CACHED: Mapping[KindName, Callable[[Path], int]] = {EAGLE3.name: _cached_by_eagle3, MEDUSA.name: lambda directory: 0}


def head_facts(directory: Path, origin: Path, target: Shape, dtype: str) -> dict[str, Any]:
    """`pair_facts.model_facts` of a head, whose vocabulary and context are its target's."""
    weights, elements = measure_draft(directory), _CACHED[kind_of(directory).name](directory)
    return {
        "dtype": dtype,
        "digest": model_digest(directory),
        "parameters": weights.parameters,
        "bytes": weights.bytes,
        "license": licence(origin),
        "logits_width": target.logits_width,
        "context": target.context,
        "cache_bytes_per_token": elements * dtype_bytes(dtype),
        "forward": "own",
    } | ({"step_shape": steps} if (steps := step_shape(directory)) is not None else {})


def serving_facts(directory: Path, target: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """`stored_pair.HeadFacts` of a head, which state whether an engine serves it."""
    layers = int(load_config(target, trust_remote_code).get_text_config().num_hidden_layers)
    head = head_of(directory)
    return {"kind": head.kind.name, "longest": head.longest, "traits": list(head.traits(layers))}


def check_tensors(directory: Path, wanted: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """UsageError unless there is a tensor of the right shape for each name, and no other."""
    missing, unused = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    shapes = [name for name in wanted if name in tensors and wanted[name].shape != tensors[name].shape]
    if missing:
        what = f"{len(missing)} tensors of the head are in no file, such as {missing[0]}"
    elif unused:
        what = f"{len(unused)} tensors of its files would not be used, such as {unused[0]}"
    elif shapes:
        have, need = tuple(tensors[shapes[0]].shape), tuple(wanted[shapes[0]].shape)
        what = f"{shapes[0]} has the shape {have}, and the configs of head and target make it {need}"
    else:
        return
    raise UsageError(
        f"{directory / CONFIG}: it does not describe the weights beside it: {what}; take both from where the head was published, "
        "and name the target that it was made for"
    )

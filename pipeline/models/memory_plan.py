"""What a model and its batch take, beside what is free where they go: what cannot fit is refused before anything is loaded.

A lower bound: activations, copies and what an allocator keeps come on top. Where it does not suffice, `out_of_memory.py` says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pipeline.config.pair import DeviceMap
from pipeline.errors import UsageError
from pipeline.models.host_memory import free_host_memory
from pipeline.models.model_json import read_config
from pipeline.models.shape import measure_weights, read_shape
from pipeline.models.training_memory import training_bytes

_GIB = 1 << 30
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LOGITS_BYTES = 8  # of a logit: in fp32, and its log-softmax


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Sequences decoded at once, each with a KV cache of `tokens`. `key`: of the config, that says how many."""

    key: str
    rows: int
    tokens: int


def require_memory(
    path: Path,
    dtype: str,
    device: torch.device,
    device_map: DeviceMap | None,
    trusted: bool,
    batch: Batch | None = None,
) -> None:
    """UsageError with the numbers where the model in `path` cannot fit where it goes, with `batch` or without. Reads headers
    only."""
    places = _places(device, device_map)
    free = _free(places)
    if free is None:
        return
    on_disk = "disk" in places  # which takes what is too large elsewhere
    where, weights = f"{_gib(free)} are free on {', '.join(places)}", 0 if on_disk else _weights(path, dtype, trusted)
    if weights > free:
        form = "they are quantized" if _is_quantized(path) else dtype
        raise UsageError(f"{path}: its weights take {_gib(weights)} as {form}, and {where}; {_elsewhere(device_map)}")
    if batch is None:
        return
    shape, width = read_shape(path, trusted), _BYTES["bfloat16" if _is_quantized(path) else dtype]
    caches, logits = shape.cache_elements_per_token * width * batch.tokens, shape.logits_width * _LOGITS_BYTES
    if weights + batch.rows * (caches + logits) > free:
        fits = (free - weights) // (caches + logits)
        remedy = f"set {batch.key} to {fits} or fewer" if fits else _elsewhere(device_map)
        held = "" if on_disk else f"weights of {_gib(weights)}, "
        raise UsageError(
            f"{batch.key} = {batch.rows}: {held}KV caches of {batch.rows} x {batch.tokens:,} tokens of "
            f"{_gib(batch.rows * caches)} and logits of {_gib(batch.rows * logits)} do not fit: {where}; {remedy}"
        )


def require_training_memory(
    path: Path, device: torch.device, optimizer: Literal["adamw", "muon"], parts: int, trusted: bool
) -> None:
    """UsageError with the numbers where a training of all weights of the model in `path` cannot fit on `device`. `parts`: of the
    processes that divide it; 1: each holds all of it. Reads headers only."""
    free = _free([str(device)])
    parameters = measure_weights(path, trusted).parameters
    needed = round(training_bytes(parameters, optimizer, parts))
    if free is None or needed <= free:
        return
    held = "" if parts == 1 else f" in each of {parts} processes that divide it"
    remedy = "divide it among several GPUs (distill.shard)" if parts == 1 else "use more processes"
    raise UsageError(
        f"{path}: a training of its {parameters:,} parameters takes {_gib(needed)}{held} (float32 weights, gradients, optimizer "
        f"state), and {_gib(free)} are free on {device}; {remedy}, train adapters (distill.lora), or take a smaller draft"
    )


def _weights(path: Path, dtype: str, trusted: bool) -> int:
    """Bytes of the weights once they are loaded."""
    found, quantization = measure_weights(path, trusted), read_config(path).quantization
    if quantization is not None and quantization.quant_method == "fp8":  # dequantized when it is loaded
        return found.parameters * _BYTES["bfloat16"]
    return found.bytes if _is_quantized(path) else found.parameters * _BYTES[dtype]


def _is_quantized(path: Path) -> bool:
    return read_config(path).is_quantized


def _places(device: torch.device, device_map: DeviceMap | None) -> list[str]:
    if device_map is None:
        return [str(device)]
    if isinstance(device_map, Mapping):
        return sorted({place if isinstance(place, str) else f"cuda:{place}" for place in device_map.values()})
    return [*(f"cuda:{number}" for number in range(torch.cuda.device_count())), "cpu", "disk"]


def _free(places: Iterable[str]) -> int | None:
    """Bytes, without those of the disk, which is not looked at; None where it is not known."""
    found = [_free_on(place) for place in places if place != "disk"]
    return None if None in found else sum(one for one in found if one is not None)


def _free_on(place: str) -> int | None:
    if place == "cpu":
        return free_host_memory()
    if not place.startswith("cuda"):
        return None
    free, _ = torch.cuda.mem_get_info(place)
    unused: int = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)  # kept by torch for itself
    return int(free) + unused


def _elsewhere(device_map: DeviceMap | None) -> str:
    several = "" if device_map is not None else "place a target on several GPUs (pair.target.device_map: auto), "
    return f"{several}take a quantized checkpoint, or serve a target (pair.target.source: server)"


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / (1 << 20):.1f} MiB"

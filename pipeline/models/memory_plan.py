"""What a model and its batch take, beside what is free where they go: what cannot fit is refused before anything is loaded.

A lower bound: activations, copies and what an allocator keeps come on top. Where it does not suffice, `out_of_memory.py` reports
it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pipeline.config.pair import DeviceMap
from pipeline.errors import UsageError
from pipeline.models.memory import Optimizer, free_host_memory, gib, training_bytes
from pipeline.models.model_json import read_config
from pipeline.models.shape import measure_weights, read_shape

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LOGITS_BYTES = 8  # of a logit: in fp32, and its log-softmax


@dataclass(frozen=True, kw_only=True)
class DecodedBatch:
    """Sequences decoded at once, each with a KV cache of `tokens`. `key`: of the config, that states how many."""

    key: str
    rows: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is free where a model goes. `free`: bytes, without those of the disk, which is not looked at; None where it is not
    known."""

    places: tuple[str, ...]
    free: int | None
    spread: bool = False  # over the places, by a device map
    whose: str = ""  # of what is free, where it is not all for one model

    @classmethod
    def of(cls, device: torch.device, device_map: DeviceMap | None = None) -> "Room":
        """The room on this machine, now."""
        places = _places(device, device_map)
        return cls(places=tuple(places), free=_free(places), spread=device_map is not None)

    @property
    def text(self) -> str:
        return f"{gib(self.free or 0)} are free on {', '.join(self.places)}{self.whose}"

    def shared(self, processes: int, key: str) -> "Room":
        """What each of several processes has of it. `key`: of the config, that states how many."""
        if self.free is None or processes == 1:
            return self
        return replace(self, free=self.free // processes, whose=f" for each of {processes} processes ({key})")

    def beside(self, held: float, what: str) -> "Room":
        """What is left of it once other models are there."""
        if self.free is None:
            return self
        return replace(self, free=max(0, self.free - round(held)), whose=f"{self.whose} beside {what}")


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Bytes of a model that is loaded, and of each sequence of its batch."""

    weights: int
    caches: int = 0
    logits: int = 0
    batch: DecodedBatch | None = None

    @property
    def bytes(self) -> int:
        rows = self.batch.rows if self.batch is not None else 0
        return self.weights + rows * (self.caches + self.logits)

    @property
    def text(self) -> str:
        """What takes them; weights that are on disk take none."""
        held = f"weights of {gib(self.weights)}"
        if self.batch is None:
            return held
        rows, tokens = self.batch.rows, self.batch.tokens
        return (
            f"{f'{held}, ' if self.weights else ''}KV caches of {rows} x {tokens:,} tokens of {gib(rows * self.caches)} and "
            f"logits of {gib(rows * self.logits)}"
        )


def needed_memory(path: Path, dtype: str, trusted: bool, batch: DecodedBatch | None = None) -> Needed:
    """The memory of the model in `path`, with `batch` or without. Reads headers only."""
    return _with_batch(_weights(path, dtype, trusted), path, dtype, trusted, batch)


def require_memory(
    path: Path,
    dtype: str,
    device: torch.device,
    device_map: DeviceMap | None,
    trusted: bool,
    batch: DecodedBatch | None = None,
) -> None:
    """UsageError with the numbers where the model in `path` cannot fit where it goes, with `batch` or without. Reads headers
    only."""
    require_room(path, dtype, Room.of(device, device_map), trusted, batch)


def require_room(path: Path, dtype: str, room: Room, trusted: bool, batch: DecodedBatch | None = None) -> None:
    """Does `require_memory` in a room that is known."""
    if room.free is None:
        return
    on_disk = "disk" in room.places  # which takes what is too large elsewhere
    weights = 0 if on_disk else _weights(path, dtype, trusted)
    if weights > room.free:
        form = "they are quantized" if _is_quantized(path) else dtype
        raise UsageError(f"{path}: its weights take {gib(weights)} as {form}, and {room.text}; {_elsewhere(room)}")
    if batch is None:
        return
    needed = _with_batch(weights, path, dtype, trusted, batch)
    if needed.bytes > room.free:
        fits = (room.free - weights) // (needed.caches + needed.logits)
        remedy = f"set {batch.key} to {fits} or fewer" if fits else _elsewhere(room)
        raise UsageError(f"{batch.key} = {batch.rows}: {needed.text} do not fit: {room.text}; {remedy}")


def require_training_memory(path: Path, device: torch.device, optimizer: Optimizer, parts: int, trusted: bool) -> None:
    """UsageError with the numbers where a training of all weights of the model in `path` cannot fit on `device`. `parts`: of the
    processes that divide it; 1: each holds all of it. Reads headers only."""
    require_training_room(str(path), measure_weights(path, trusted).parameters, Room.of(device), optimizer, parts)


def require_training_room(name: str, parameters: float, room: Room, optimizer: Optimizer, parts: int) -> None:
    """Does `require_training_memory` for a model of which only `parameters` is known, and in a room that is known."""
    needed = round(training_bytes(parameters, optimizer, parts))
    if room.free is None or needed <= room.free:
        return
    held = "" if parts == 1 else f" in each of {parts} processes that divide it"
    remedy = "divide it among several GPUs (distill.shard)" if parts == 1 else "use more processes"
    raise UsageError(
        f"{name}: a training of its {parameters:,.0f} parameters takes {gib(needed)}{held} (float32 weights, gradients, "
        f"optimizer state), and {room.text}; {remedy}, train adapters (distill.lora), or take a smaller draft"
    )


def _with_batch(weights: int, path: Path, dtype: str, trusted: bool, batch: DecodedBatch | None) -> Needed:
    if batch is None:
        return Needed(weights=weights)
    shape, width = read_shape(path, trusted), _BYTES["bfloat16" if _is_quantized(path) else dtype]
    caches = shape.cache_elements_per_token * width * batch.tokens
    return Needed(weights=weights, caches=caches, logits=shape.logits_width * _LOGITS_BYTES, batch=batch)


def _weights(path: Path, dtype: str, trusted: bool) -> int:
    """Bytes of the weights once they are loaded."""
    weights, quantization = measure_weights(path, trusted), read_config(path).quantization
    if quantization is not None and quantization.quant_method == "fp8":  # dequantized when it is loaded
        return weights.parameters * _BYTES["bfloat16"]
    return weights.bytes if _is_quantized(path) else weights.parameters * _BYTES[dtype]


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
    free = [_free_on(place) for place in places if place != "disk"]
    return None if None in free else sum(bytes_free for bytes_free in free if bytes_free is not None)


def _free_on(place: str) -> int | None:
    if place == "cpu":
        return free_host_memory()
    if not place.startswith("cuda"):
        return None
    try:
        free, _ = torch.cuda.mem_get_info(place)
    except RuntimeError:  # a card that is full, or that another process has to itself, does not state it
        return None
    unused: int = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)  # kept by torch for itself
    return int(free) + unused


def _elsewhere(room: Room) -> str:
    several = "" if room.spread else "place a target on several GPUs (pair.target.device_map: auto), "
    return f"{several}take a quantized checkpoint, or serve a target (pair.target.source: server)"

"""A model that is divided among the processes of a training, by torch's FSDP2: each process holds a part of every weight, of its
gradient and of the optimizer's state, and the whole weights of a layer only while it computes that layer.

All processes must call these functions in the same order. A divided model is only trained. Whatever else reads it, such as an
examination, reads a plain copy that is complete for as long as it is needed (`complete`), or whole tensors.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipeline.distillation.processes import count, in_turn, number
from pipeline.models.built import decoder_layers

_forms: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()  # of divided models: the same models without weights


def divided(load: Callable[[], Any], device: torch.device) -> Any:
    """The model that `load` returns, on the CPU, divided among the processes by decoder layer, each with its part on `device`.
    The processes load it in turn: a machine holds one whole copy at a time."""
    mesh = init_device_mesh(device.type, (count(),))

    def load_part() -> Any:
        model = load()
        form, layers = _without_weights(model), decoder_layers(model)
        for layer in () if layers is None else layers[1]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)  # what is in no layer: embedding, last norm, head
        _forms[model] = form
        return model

    return in_turn(load_part)


def is_divided(model: Any) -> bool:
    return model in _forms


def _without_weights(model: Any) -> Any:
    """A copy of a model, in which weights that are one are one too."""
    empty = {id(weight): nn.Parameter(weight.detach().to("meta"), requires_grad=False) for weight in model.parameters()}
    shared = {id(buffer): buffer for buffer in model.buffers()}  # FSDP moves them to the device
    return copy.deepcopy(model, empty | shared)


@contextmanager
def complete(model: Any) -> Iterator[Any]:
    """The model itself, or a plain copy with the whole weights of a divided one. FSDP's hooks would exchange weights in every
    pass, and processes that sample or examine make unequal numbers of passes."""
    if not is_divided(model):
        yield model
        return
    form, made, before = _forms[model], dict[int, nn.Parameter](), list[tuple[nn.Module, str, nn.Parameter]]()
    try:
        for module, like in zip(model.modules(), form.modules(), strict=True):
            for name, weight in module.named_parameters(recurse=False, remove_duplicate=False):
                if id(weight) not in made:
                    made[id(weight)] = nn.Parameter(whole(weight.detach()), requires_grad=False)
                before.append((like, name, getattr(like, name)))
                setattr(like, name, made[id(weight)])
        yield form
    finally:
        for like, name, empty in before:
            setattr(like, name, empty)


def is_part(tensor: torch.Tensor) -> bool:
    """Whether other processes hold the rest of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which each process may hold a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor that is divided as `like` is, and has its device."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def whole_state(state: Any) -> Any:
    """The state of an optimizer with whole tensors, in host memory. Only the first process keeps them."""
    if isinstance(state, dict):
        return {name: whole_state(value) for name, value in state.items()}
    if isinstance(state, list):
        return [whole_state(value) for value in state]
    if not isinstance(state, DTensor):
        return state
    gathered = whole(state)
    return gathered.cpu() if number() == 0 else None


def part_of_state(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """What this process holds of `whole_state`, for `optimizer`."""
    if "parts" in state:
        pairs = zip(state["parts"], optimizer.parts, strict=True)
        return {"parts": [part_of_state(optimizer, its_own) for optimizer, its_own in pairs]}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    weight_of = dict(zip(numbers, weights, strict=True))

    def divide(weight: torch.Tensor, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return (part(value, weight) if value.shape == weight.shape else value).clone()  # not of a mapped file

    parts = {
        number: {name: divide(weight_of[number], value) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return state | {"state": parts}

"""The tensors of a head's files: all of them, and no other than the head has."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from pipeline.errors import UsageError
from pipeline.models.files import weight_files
from pipeline.models.model_json import CONFIG
from pipeline.models.tensor_ledger import stored_tensors
from pipeline.store.own_files import reads_own_files


@reads_own_files("files whose headers stored_tensors has checked")
def read_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """By name. UnderstudyError for files that are damaged, or no safetensors."""
    stored_tensors(directory)
    return {name: tensor for file in weight_files(directory) for name, tensor in load_file(file).items()}


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

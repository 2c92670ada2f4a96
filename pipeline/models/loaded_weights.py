"""Whether a loaded model has the weights of its files, all of them, and no others. Does not load anything.

transformers takes random numbers for what the files lack, in a model that looks like any other, and leaves out layers beyond
those of the config.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypedDict

from pipeline.errors import UsageError
from pipeline.models.model_json import CONFIG

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, or of an expert


class LoadingInfo(TypedDict):
    """What `from_pretrained(..., output_loading_info=True)` returns beside the model; names of tensors, and their shapes in the
    file and in the model."""

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Iterable[tuple[str, Collection[int], Collection[int]]]


def check_loaded(path: Path, parameters: Collection[str], info: LoadingInfo) -> None:
    """UsageError naming the first tensor of the model in `path` by which its config.json and its weights differ. `parameters`:
    the names of those of the model."""
    for name, stored, built in sorted(info["mismatched_keys"]):
        raise _differ(path, f"{name} has the shape {_shape(built)} by the config and {_shape(stored)} in the file")
    if missing := sorted(set(info["missing_keys"]) & set(parameters)):
        raise _differ(path, f"{len(missing):,} tensors of the config are in no file, such as {missing[0]}")
    if unread := _unread_layers(parameters, info["unexpected_keys"]):
        raise _differ(path, f"{len(unread):,} tensors are of more layers than the config has, such as {unread[0]}")


def _unread_layers(parameters: Collection[str], unexpected: Collection[str]) -> list[str]:
    """Tensors of layers that are of the form of the model's own. A layer that predicts several tokens has others too."""
    known, by_layer = {_NUMBER.sub("0", name, count=1) for name in parameters}, dict[str, list[str]]()
    for name in sorted(unexpected):
        if (number := _NUMBER.search(name)) is not None:
            by_layer.setdefault(name[: number.end()], []).append(name)
    of_its_form = [
        names for names in by_layer.values() if all(_NUMBER.sub("0", name, count=1) in known for name in names)
    ]
    return [name for names in of_its_form for name in names if name not in parameters]


def _shape(sizes: Collection[int]) -> str:
    return " x ".join(map(str, sizes)) or "of one number"


def _differ(path: Path, how: str) -> UsageError:
    return UsageError(
        f"{path / CONFIG}: it does not describe the weights beside it: {how}; take both from where the model was published"
    )

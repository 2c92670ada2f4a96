"""Which of two sets of RoPE factors (longrope: Phi 3 and 4) a model uses, where its user sets it: the engine that serves it was
started so that it takes the others than the model's context suggests.

The choice is a key of the model's config.json, so it is in the digest of the model, and in what is made out of it. A model that
lies elsewhere is not changed: a directory of links to its files, with another config.json, stands for it. Torch-free.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pipeline.models.model_json import CONFIG, config_values
from pipeline.store.atomic import replacing_directory
from pipeline.store.files import content_key, write_json

CHOICE = "rope_factors"  # in config.json
Factors = Literal["short", "long"]


def with_factors(model: Path, factors: Factors) -> Path:
    """A directory that stands for `model`, in which its config states which factors are used; `model` itself where it has no two
    sets, or states it already."""
    config = config_values(model)
    chosen = _chosen(config, factors)
    if chosen == config:
        return model
    files = {file.name: str(file.resolve()) for file in sorted(model.iterdir()) if file.name != CONFIG}
    # Equal for equal files, so that all processes of a machine have one.
    place = _cache() / content_key([files, chosen])[:16] / (model.resolve().name or "model")
    try:
        if not place.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing_directory(place) as made:
                for name, target in files.items():
                    (made / name).symlink_to(target)
                write_json(made / CONFIG, chosen)
    except OSError:
        if not place.is_dir():  # else another process was faster
            raise
    return place


def choice_in(model: Path) -> Factors | None:
    """The choice in the config of `model`, such as that with which a draft was trained."""
    return next((stated for stated in _stated(config_values(model)) if stated in ("short", "long")), None)


def _stated(section: dict[str, Any]) -> Iterator[Any]:
    yield section.get(CHOICE)
    for inner in section.values():
        if isinstance(inner, dict):
            yield from _stated(inner)


def _chosen(section: dict[str, Any], factors: Factors) -> dict[str, Any]:
    """The config, or a section of it, with the choice where a decoder has two sets of factors."""
    chosen = {key: _chosen(value, factors) if isinstance(value, dict) else value for key, value in section.items()}
    scalings = (section.get(key) for key in ("rope_parameters", "rope_scaling"))
    return chosen | {CHOICE: factors} if any(_has_two_sets(scaling) for scaling in scalings) else chosen


def _has_two_sets(scaling: Any) -> bool:
    """Whether it has two sets, also where each kind of layer has a scaling of its own."""
    if not isinstance(scaling, dict):
        return False
    return {"short_factor", "long_factor"} <= scaling.keys() or any(map(_has_two_sets, scaling.values()))


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(home, "understudy", "models")
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # no home, or one that cannot be written to
        return Path(tempfile.gettempdir(), f"understudy-models-{os.getuid()}")
    return place

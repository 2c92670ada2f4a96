"""Names of models on the command line: a directory, or a model of the hub. Which of the two, and what a mistyped one may mean.

`models/x` has the form of a hub name, so a directory that is nearly called so is looked for before the hub is asked. How a draft
is named, which may be in a registry too: `pipeline.registry.draft_names`.
"""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.credentials import masked
from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.hub import commit_of, fetch
from pipeline.models.model_json import read_config

_HUB = re.compile(r"(?P<source>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_NEAR = 0.75  # of difflib: one or two letters of a short name
_SHOWN = 5


def find_model(name: str, role: str) -> Path:
    """The model directory that `name` stands for, fetched from the hub if need be."""
    directory = local_directory(name, role)
    return directory if directory is not None else fetch(*pinned_name(name, role))


def pinned_name(name: str, role: str) -> tuple[str, str]:
    """`name`, which is no directory, as a hub model and its commit. Raises as `hub_name` and `commit_of` do."""
    source, revision = hub_name(name, f"--{role}")
    return source, commit_of(source, revision)


def local_directory(name: str, role: str) -> Path | None:
    """The model directory that `name` stands for; None if `name` is a hub model, `org/name` or `org/name@revision`.

    `role` is target or draft. UsageError if `name` is a directory without a model, or neither a directory nor the name of a hub
    model.
    """
    if not name.strip():  # else the current directory
        raise UsageError(f"--{role} is empty: name a model; is a variable of the shell not set?")
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        return model_directory(path, role, f"--{role} {name}")
    hub_name(name, f"--{role}")
    return None


def model_directory(path: Path, role: str, where: str) -> Path:
    """The directory of the weights: of an artifact, the folder with the name of the role. UsageError, which begins with `where`,
    if there are none."""
    path = path / role if (path / role / "config.json").is_file() else path
    if not (path / "config.json").is_file():
        raise UsageError(f"{where}: not a model directory (no config.json there); name the directory of the weights")
    return path


def short_names(names: Sequence[str]) -> dict[str, str]:
    """A short name for each of `names`: the last components of its path, as many as make all short names different.

    For example, /a/x/draft and /a/y/draft become x/draft and y/draft. Returns name -> short name.
    """
    parts = {name: Path(name).parts for name in names}
    for kept in range(1, max(map(len, parts.values()), default=0) + 1):
        short = {name: "/".join(own[-kept:]) for name, own in parts.items()}
        if len(set(short.values())) == len(names):
            return short
    return {name: name for name in names}


def hub_name(
    name: str, option: str, otherwise: str = "a model of the hub is org/name, or org/name@revision"
) -> tuple[str, str | None]:
    """`name`, which is no directory, as a hub model: org/name, and the revision after an @. `otherwise`: the end of the error
    for a name that can be none.

    UsageError where it is a path, also one that only looks like org/name: its folder is there, or a similar directory is.
    """
    if "://" in name:
        raise UsageError(
            f"{option} {masked(name)}".strip()
            + ": a URL, and this model is loaded here; give a directory, org/name or "
            "org/name@revision"
        )
    match, where = _HUB.fullmatch(name), f"{option} {name}".strip()
    if match is None:
        raise UsageError(f"{where}: no such directory{similar_directory(Path(os.path.expanduser(name)))}; {otherwise}")
    path, revision = Path(match["source"]), match["revision"]
    similar = _similar(path)
    if revision is None and (similar or path.parent.is_dir()):
        raise UsageError(
            f"{where}: no such directory{_hint(similar) or _holds(path.parent)}; if you mean a model of the hub, write "
            f"{name}@main"
        )
    return match["source"], revision


def similar_directory(path: Path) -> str:
    """A hint at the directory that is nearly called so; empty if there is none."""
    return _hint(_similar(path))


def _similar(path: Path) -> list[Path]:
    """Directories whose path is nearly `path`, the nearest first."""
    known = [path.parent] if path.parent.is_dir() else _near(path.parent)
    return [near for parent in known for near in _near(parent / path.name)]


def _near(path: Path) -> list[Path]:
    try:
        beside = {item.name: item for item in path.parent.iterdir() if item.is_dir()}
    except OSError:
        return []
    return [beside[name] for name in difflib.get_close_matches(path.name, beside, n=2, cutoff=_NEAR)]


def _hint(similar: list[Path]) -> str:
    return f"; did you mean {printable(str(similar[0]))}?" if similar else ""


def _holds(folder: Path) -> str:
    names = sorted(item.name for item in folder.iterdir() if item.is_dir())
    more = ", ..." if len(names) > _SHOWN else ""
    return (
        f" ({folder} holds {printable(', '.join(names[:_SHOWN]))}{more})"
        if names
        else f" ({folder} holds no directory)"
    )


def layers_to_keep(target: Path | None) -> int | None:
    """How many of the target's layers a draft begins with: an eighth, at least one. None where their number is not known or 1."""
    layers = _layers(target) if target is not None else None
    return None if layers is None or layers < 2 else max(1, layers // 8)


def _layers(directory: Path) -> int | None:
    try:
        return read_config(directory).decoder.num_hidden_layers
    except UnderstudyError:
        return None


def same_model(where: str, target: Path | None) -> UsageError:
    """The error for a draft that is the target; `target` is its directory, if it is here."""
    layers = layers_to_keep(target)
    return UsageError(
        f"{where}: this is the target itself, and such a draft makes nothing faster; give a smaller model with the target's "
        f"tokenizer, or make one of the target's layers: draft: {{source: target, layers: {layers or 4}}}"
    )

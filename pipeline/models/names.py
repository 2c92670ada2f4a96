"""Names of models on the command line: a directory, or a model of the hub. Which of the two, and what a mistyped one may mean.

Asks no hub. `models/x` has the form of a hub name, so a directory that is nearly called so is looked for first.
"""

import difflib
import re
from pathlib import Path

from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.model_json import read_config

_HUB = re.compile(r"(?P<source>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_NEAR = 0.75  # of difflib: one or two letters of a short name
_SHOWN = 5


def hub_name(name: str, option: str) -> tuple[str, str | None]:
    """`name`, which is no directory, as a hub model: org/name, and the revision after an @.

    UsageError where it is a path, also one that only looks like org/name: its folder is there, or a similar directory is.
    """
    found = _HUB.fullmatch(name)
    if found is None:
        raise UsageError(
            f"{option} {name}: no such directory{_hint(_similar(Path(name).expanduser()))}; a model of the hub is org/name, or "
            "org/name@revision"
        )
    path, revision = Path(found["source"]), found["revision"]
    similar = _similar(path)
    if revision is None and (similar or path.parent.is_dir()):
        raise UsageError(
            f"{option} {name}: no such directory{_hint(similar) or _holds(path.parent)}; if you mean a model of the hub, write "
            f"{name}@main"
        )
    return found["source"], revision


def _similar(path: Path) -> list[Path]:
    """Directories whose path is nearly `path`, the nearest first."""
    known = [path.parent] if path.parent.is_dir() else _near(path.parent)
    return [found for parent in known for found in _near(parent / path.name)]


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

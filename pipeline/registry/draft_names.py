"""The one grammar with which commands name a draft. Asks no registry and no hub, and loads nothing heavy.

Where a text can be read in several ways, the first of these wins:

1. with a separator, or with a `.` or `~` in front: what lies at this path; else a model of the hub;
2. NAME@ALIAS and NAME@VERSION: a version in the registry;
3. one word: a run of the store; else a name that a run of the store promotes under; else what lies here; else, by its form
   (`...-draft`), a name in the registry.

So a file or directory that has the name of a run is written `./word`, and a registered draft that has it `word@champion`.
"""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.escaping.nearest import did_you_mean
from pipeline.registry.drafts import ALIASES, CHAMPION

FORMS = "RUN, NAME, NAME@ALIAS, NAME@VERSION, DIRECTORY or org/name@revision"
COMPARED_FORMS = "RUN, NAME, NAME@ALIAS, NAME@VERSION, DIRECTORY, org/name@revision or a baseline FILE"
CONFIG_FORMS = "CONFIG, RUN, NAME, NAME@ALIAS or NAME@VERSION"
RUN_FORMS = "RUN (`understudy runs` lists them), NAME, NAME@ALIAS or NAME@VERSION"

LATEST = "latest"
_NAME = r"[A-Za-z0-9._-]+"
_VERSION = re.compile(rf"(?P<name>{_NAME})@(?P<which>{'|'.join(ALIASES)}|\d+)")
_NUMBERED = re.compile(rf"(?P<name>{_NAME})/(?P<version>\d+)")
_REGISTERED = re.compile(rf"{_NAME}-draft(--{_NAME})?")


@dataclass(frozen=True)
class Run:
    """The candidate of a run."""

    id: str  # or `latest`


@dataclass(frozen=True)
class Registered:
    """A version of a name in the registry."""

    name: str
    which: str = ""  # an alias or a version; empty where only the name was given: the champion


@dataclass(frozen=True)
class Directory:
    """A directory of weights, or an artifact that holds them."""

    path: Path


@dataclass(frozen=True)
class File:
    """A baseline where drafts are compared; a config where one is taken."""

    path: Path


@dataclass(frozen=True)
class Hub:
    """A model of the hub. `revision`: a branch, a tag or a commit; None for the main branch."""

    source: str
    revision: str | None


Named = Run | Registered | Directory | File | Hub


@dataclass(frozen=True)
class Known:
    """What a store has under one word. Each is asked only where it decides."""

    store: str  # where it is, for errors
    runs: Collection[str]
    names: Collection[str]  # that a run promotes under


@dataclass(frozen=True)
class Reading:
    """What a text names. `note`: what else it could have named, and how that is written."""

    named: Named
    note: str = ""


def parse(text: str, known: Known, option: str = "", forms: str = FORMS) -> Reading:
    """What `text` names. `option` and `forms` are for the UsageError of a text that names nothing."""
    path, where = Path(os.path.expanduser(text)), f"{option} {text}".strip()
    if _is_path(text):
        return Reading(_at(path) or _of_hub(text, where, option, forms))
    if match := _VERSION.fullmatch(text):
        return Reading(Registered(match["name"], match["which"]), _beside(text, path, "version"))
    if text == LATEST or text in known.runs:
        both = f"{text}: the run is taken; the registered draft is {text}@{CHAMPION}" if text in known.names else ""
        return Reading(Run(text), both or _beside(text, path, "run"))
    if text in known.names:
        return Reading(Registered(text), _beside(text, path, "registered draft"))
    if text and (here := _at(path)) is not None:
        return Reading(here)
    if _REGISTERED.fullmatch(text):
        return Reading(Registered(text))
    meant = _meant(text, path, known)
    raise UsageError(
        f"{where or '(empty)'}: no run and no registered draft of {known.store}, and no directory here{meant}; give {forms}"
    )


def _is_path(text: str) -> bool:
    return "/" in text or text.startswith((".", "~"))


def _at(path: Path) -> Directory | File | None:
    if os.path.isdir(path):  # False also for a name that no file can have, which Path.is_dir raises for
        return Directory(path)
    return File(path) if os.path.isfile(path) else None


def _beside(text: str, path: Path, taken: str) -> str:
    """A note where something that is called so lies here too."""
    entry = _at(path)
    kind = "directory" if isinstance(entry, Directory) else "file"
    return f"{text}: the {taken} is taken; the {kind} is ./{text}" if entry is not None else ""


def refuse_numbered(text: str, where: str) -> None:
    """UsageError for NAME/VERSION, which was the form of a version."""
    if match := _NUMBERED.fullmatch(text):
        raise UsageError(
            f"{where}: a version is written {match['name']}@{match['version']}, and a model of the hub of this name {text}@main"
        )


def _of_hub(text: str, where: str, option: str, forms: str) -> Hub:
    refuse_numbered(text, where)
    from pipeline.models.names import hub_name  # loads pydantic, and `--help` needs only the forms

    return Hub(*hub_name(text, option, f"give {forms}"))


def _meant(text: str, path: Path, known: Known) -> str:
    if text == "target":
        return "; a draft of the target's layers is made by a run (`understudy init --draft target`)"
    name, at, which = text.partition("@")
    if at:
        return f" ({which} is neither a version nor one of {', '.join(ALIASES)})"
    if name and (similar := did_you_mean(name, {*known.names, *known.runs})):
        return similar
    from pipeline.models.names import similar_directory

    return similar_directory(path) if name else ""

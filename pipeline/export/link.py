"""The link `champion` in `promote.export.out`, which servers start from.

Each version has a directory of its own there. The link is replaced atomically, so a server that is started from it finds one
version or the other. Does not depend on how a draft is exported.
"""

import os
from pathlib import Path

from pipeline.config.promote import ExportConfig
from pipeline.errors import UnderstudyError
from pipeline.store.atomic import PARTIAL, temporary_name

LINK = "champion"


def exported_directory(settings: ExportConfig, version: str) -> Path:
    """The directory that a version is exported to."""
    return Path(settings.out).absolute() / f"version-{version}"


def linked_directory(settings: ExportConfig) -> Path | None:
    """The directory that the link points to; None if there is no link."""
    link = Path(settings.out).absolute() / LINK
    return link.parent / os.readlink(link) if link.is_symlink() else None


def point_link(settings: ExportConfig, directory: Path | None) -> None:
    """Let the link point to an exported version; None removes it. UnderstudyError if something else has its name."""
    link = Path(settings.out).absolute() / LINK
    if link.exists() and not link.is_symlink():
        raise UnderstudyError(f"{link}: not a symlink, refusing to replace it; move it away and run `champion settle`")
    for stray in link.parent.glob(f".{LINK}{PARTIAL[1:]}"):  # of a process that was killed
        stray.unlink(missing_ok=True)
    if directory is None:
        link.unlink(missing_ok=True)
    elif linked_directory(settings) != directory:
        new = temporary_name(link)
        new.symlink_to(directory.name, target_is_directory=True)
        os.replace(new, link)

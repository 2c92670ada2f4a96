"""`promote.export`: the exported champion, and the link `champion` that servers start from.

Each version has a directory of its own in `promote.export.out`. The link is replaced atomically, so a server that is started
from it finds one version or the other.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.promote import ExportConfig
from pipeline.errors import UnderstudyError
from pipeline.progress import Progress
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry
from pipeline.store.artifacts import Store
from pipeline.store.atomic import PARTIAL, temporary_name

if TYPE_CHECKING:
    from pipeline.export.subject import Subject

LINK = "champion"


def check_export(settings: ExportConfig, subject: "Subject") -> None:
    """UsageError if the engine does not take the draft; before a promotion, which could not be exported otherwise."""
    from pipeline.export.plan import plan_export

    plan_export(subject, settings.engine, Path(settings.out), settings.tensor_parallel, settings.converter)


def exported_directory(settings: ExportConfig, version: str) -> Path:
    """Where a version is exported to."""
    return Path(settings.out).absolute() / f"version-{version}"


def linked_directory(settings: ExportConfig) -> Path | None:
    """Where the link points to; None if there is no link."""
    link = Path(settings.out).absolute() / LINK
    return link.parent / os.readlink(link) if link.is_symlink() else None


def export_version(
    settings: ExportConfig, store: Store, registry: Registry, draft: RegisteredDraft, progress: Progress
) -> Path:
    """Export a registered draft, unless that was done before. Returns the version's directory."""
    out = exported_directory(settings, draft.version)
    if not (out / "README.md").is_file():
        from pipeline.export.plan import plan_export  # loads torch: a run that changes nothing exports nothing
        from pipeline.export.subject import registered_subject
        from pipeline.export.write import write_export

        subject = registered_subject(store, registry, draft)
        plan = plan_export(subject, settings.engine, out, settings.tensor_parallel, settings.converter)
        for note in plan.notes:
            progress.warn(f"export: {note}")
        write_export(plan, progress)
    where = f"{settings.engine}: {out}"
    if registry.entry().version(draft.version).tags.get("export") != where:
        registry.note_export(draft.version, where)
    return out


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

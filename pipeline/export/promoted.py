"""`promote.export`: the champion is exported after its promotion.

Each version has a directory of its own in `promote.export.out`. The link `champion` there is replaced atomically, so a server
that is started from it finds one version or the other.
"""

import os
from pathlib import Path

from pipeline.config.promote import ExportConfig
from pipeline.engines.facts import ExportEngine
from pipeline.errors import UnderstudyError
from pipeline.export.plan import plan_export
from pipeline.export.subject import Subject, registered_subject
from pipeline.export.write import write_export
from pipeline.progress import Progress
from pipeline.registry.registry import RegisteredDraft, Registry
from pipeline.store.artifacts import Store

LINK = "champion"


def check_export(settings: ExportConfig, subject: Subject) -> None:
    """UsageError if the engine does not take the draft; before a promotion, which could not be exported otherwise."""
    plan_export(subject, settings.engine, Path(settings.out), settings.tensor_parallel, settings.converter)


def export_champion(
    settings: ExportConfig, registry: Registry, store: Store, champion: RegisteredDraft, progress: Progress
) -> Path:
    """Export a registered draft as `promote.export` says, unless that was done before. Returns the version's directory."""
    engine: ExportEngine = settings.engine
    out = Path(settings.out).absolute() / f"version-{champion.version}"
    if not (out / "README.md").is_file():
        subject = registered_subject(store, registry, champion)
        plan = plan_export(subject, engine, out, settings.tensor_parallel, settings.converter)
        for note in plan.notes:
            progress.warn(f"export: {note}")
        write_export(plan, progress)
    _point(out)
    registry.note_export(champion.version, f"{engine}: {out}")
    return out


def _point(out: Path) -> None:
    """Let the link beside `out` point to it."""
    link, new = out.parent / LINK, out.parent / f".{LINK}.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        raise UnderstudyError(f"{link}: it is no link, so it is not replaced; move it away and promote again")
    new.unlink(missing_ok=True)
    new.symlink_to(out.name, target_is_directory=True)
    os.replace(new, link)

"""`promote.export`: a registered draft in the form of the engine that serves it. Loads torch only where something is exported."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.promote import ExportConfig
from pipeline.errors import UnderstudyError
from pipeline.export.link import exported_directory
from pipeline.export.schema import FILE, read_expected
from pipeline.progress import Progress
from pipeline.registry.drafts import RegisteredDraft
from pipeline.registry.registry import Registry
from pipeline.store.artifacts import Store

if TYPE_CHECKING:
    from pipeline.registry.named import Draft


def check_export(settings: ExportConfig, draft: "Draft") -> None:
    """UsageError if the engine does not take the draft; before a promotion, which could not be exported otherwise."""
    from pipeline.export.plan import plan_export

    plan_export(draft, settings.engine, Path(settings.out), settings.tensor_parallel, settings.converter)


def export_version(
    settings: ExportConfig, store: Store, registry: Registry, draft: RegisteredDraft, progress: Progress
) -> Path:
    """Export a registered draft, unless that was done before. Returns the version's directory.

    UnderstudyError if the directory holds the export of another draft or for another engine, such as of another registry whose
    versions have the same numbers.
    """
    out = exported_directory(settings, draft.version)
    if (out / FILE).is_file():
        expected = read_expected(out)
        if (expected.draft.digest, expected.engine) != (draft.digest, settings.engine):
            raise UnderstudyError(
                f"{out} holds another export (draft {expected.draft.digest} for {expected.engine}); move it away, or set another "
                "promote.export.out for this deployment or engine"
            )
    else:
        from pipeline.export.plan import plan_export
        from pipeline.export.write import write_export
        from pipeline.registry.named import version_draft

        exported = version_draft(store, registry, draft)
        plan = plan_export(exported, settings.engine, out, settings.tensor_parallel, settings.converter)
        for note in plan.notes:
            progress.warn(f"export: {note}")
        write_export(plan, progress)
    where = f"{settings.engine}: {out}"
    if registry.entry().version(draft.version).tags.get("export") != where:
        registry.note_export(draft.version, where)
    return out

"""What `understudy store gc` prints: one row for each stage."""

from collections import Counter
from collections.abc import Collection, Sequence

from pipeline.report.console import Report
from pipeline.running.retention import Entry
from pipeline.running.stage_list import STAGE_NAMES

COLUMNS = ("stage", "artifacts", "kept", "freed MB", "why kept")


def print_review(entries: Sequence[Entry], gone: Collection[Entry], deleted: bool) -> None:
    """To stdout. `gone` is what was deleted, or would be."""
    out = Report()
    kinds = sorted({entry.kind for entry in entries}, key=_order)
    if kinds:
        out.table(COLUMNS, [_row(kind, entries, gone) for kind in kinds], left=("stage", "why kept"))
    what = f"{len(gone)} director{'y' if len(gone) == 1 else 'ies'}, {_megabytes(gone)} MB"
    if deleted:
        out.text(f"deleted {what}")
    elif gone:
        out.text(f"{what}, can be deleted; nothing was changed, add --delete to do so")
    else:
        out.text("nothing to delete")


def _row(kind: str, entries: Sequence[Entry], gone: Collection[Entry]) -> list[str]:
    mine = [entry for entry in entries if entry.kind == kind]
    freed = [entry for entry in mine if entry in gone]
    reasons = Counter(entry.why for entry in mine if entry.why)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return [kind, str(len(mine)), str(len(mine) - len(freed)), _megabytes(freed), why or "-"]


def _megabytes(entries: Collection[Entry]) -> str:
    return f"{sum(entry.bytes for entry in entries) / 1e6:,.1f}"


def _order(kind: str) -> tuple[int, str]:
    return (STAGE_NAMES.index(kind) if kind in STAGE_NAMES else len(STAGE_NAMES), kind)

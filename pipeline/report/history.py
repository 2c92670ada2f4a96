"""What `understudy champion history` prints: one row for each change of the aliases."""

from collections.abc import Sequence

from pipeline.registry.history import Change
from pipeline.report.console import Report

COLUMNS = ("change", "time (UTC)", "action", "version", "run")


def print_history(changes: Sequence[Change]) -> None:
    """To stdout: a table, and below it who made a change and why, which is too long for a table."""
    out = Report()
    out.table(COLUMNS, [history_row(change) for change in changes], left=("action", "run"))
    for change in changes:
        more = ", ".join(text for text in (change.by and f"by {change.by}", change.why) if text)
        if more:
            out.text(f"change {change.number}: {more}", indent=2)


def history_row(change: Change) -> list[str]:
    """The cells of one change."""
    time = change.time.removesuffix("Z").replace("T", " ")
    versions = f"{change.old} -> {change.new}"
    return [str(change.number), time, change.action, versions, change.run or "-"]

"""What `understudy champion history` prints: one row for each promotion and rollback."""

from collections.abc import Sequence

from pipeline.registry.registry import Change
from pipeline.report.console import Report

COLUMNS = ("change", "time (UTC)", "action", "champion", "run")


def print_history(changes: Sequence[Change]) -> None:
    """To stdout."""
    Report().table(COLUMNS, [history_row(change) for change in changes], left=("action", "run"))


def history_row(change: Change) -> list[str]:
    """The cells of one change. Its text is `TIME ACTION OLD -> NEW`, followed by `run ID` for a promotion."""
    time, action, old, arrow, new, *run = change.text.split()
    versions = f"{old} {arrow} {new}"
    return [str(change.number), time.removesuffix("Z").replace("T", " "), action, versions, run[-1] if run else "-"]

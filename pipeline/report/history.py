"""What `understudy champion history` prints: one row for each change of the aliases."""

from collections.abc import Sequence

from pipeline.registry.history import Change
from pipeline.report.console import Report

COLUMNS = ("change", "time (UTC)", "action", "version", "run", "by", "why")


def print_history(changes: Sequence[Change]) -> None:
    """To stdout."""
    Report().table(COLUMNS, [history_row(change) for change in changes], left=("action", "run", "by", "why"))


def history_row(change: Change) -> list[str]:
    """The cells of one change."""
    time = change.time.removesuffix("Z").replace("T", " ")
    rest = [text or "-" for text in (change.run, change.by, change.why)]
    return [str(change.number), time, change.action, f"{change.old} -> {change.new}", *rest]

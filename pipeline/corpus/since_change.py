"""Whether there is something to learn from a change: logs, and rows of them since `corpus.since`. Messages, and no rows."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from pipeline.config.corpus import CorpusConfig
from pipeline.corpus.readers import SourceReader
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

MORE_ROWS = "wait until the log has more rows, or set corpus.since to an earlier time"


def why_no_log(readers: Iterable[SourceReader]) -> str | None:
    """Why rows since a change cannot be told from older ones; None if a source has times. `readers` are those of the sources."""
    logs = list(readers)
    if any(reader.columns.has_times for reader in logs):
        return None
    where = ", ".join(f"{printable(str(reader.path))} has no column '{reader.source.time_field}'" for reader in logs)
    return (
        f"no source has times{f' ({where})' if where else ''}; name the column of the time in corpus.sources.N.time_field, or "
        "add the deployment's log as a source (docs/logs.md)"
    )


def check_log(config: CorpusConfig, readers: Iterable[SourceReader]) -> None:
    """UsageError where `config.since` can choose no rows."""
    if config.since is not None and (reason := why_no_log(readers)) is not None:
        raise UsageError(f"corpus.since = {config.since}: {reason}")


def check_rows(config: CorpusConfig, logs: Sequence[tuple[SourceReader, int, float | None]]) -> None:
    """UsageError where no log has a row since the change. `logs`: the readers of the logs, with the number of their rows that
    are used and the time of the newest, in seconds since 1970."""
    if config.since is None or any(rows for _, rows, _ in logs):
        return
    newest = max((time for _, _, time in logs if time is not None), default=None)
    stated = "" if newest is None else f"; the newest is of {_text(newest)}"
    paths = ", ".join(printable(str(reader.path)) for reader, _, _ in logs)
    raise UsageError(f"{paths}: no row is of corpus.since = {config.since} or later{stated}; {MORE_ROWS}")


def _text(time: float) -> str:
    try:
        return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time:.0f} seconds after 1970"

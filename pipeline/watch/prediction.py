"""What the counters should show: the expected counters in the champion's export."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pipeline.config.root import Config
from pipeline.config.watch import WatchConfig
from pipeline.engines.facts import FACTS, WatchedEngine
from pipeline.errors import UsageError
from pipeline.export.link import linked_directory
from pipeline.export.schema import FILE, Expected, ServedFigures, read_expected
from pipeline.watch.share import Predicted

_ENGINES: dict[str, WatchedEngine] = {name: name for name in get_args(WatchedEngine)}


@dataclass(frozen=True)
class ServedDraft:
    """The engine that is watched, and the exported draft that it should serve; `expected` is None without an export."""

    engine: WatchedEngine
    expected: Expected | None
    by_link: bool = False  # found by a link, which is moved when the champion changes

    @property
    def digest(self) -> str:
        """The digest of the exported draft; empty without one."""
        return "" if self.expected is None else self.expected.draft.digest

    @property
    def predicted(self) -> Predicted | None:
        if self.expected is None:
            return None
        return predicted_by(self.expected, self.expected.deployed)


def predicted_by(expected: Expected, figures: ServedFigures) -> Predicted:
    """The prediction by one of the sets of figures of an export, at the draft length that its engine is started with."""
    expected_counts = figures.by_draft_length[expected.gamma]
    return Predicted(
        digest=expected.draft.digest,
        gamma=expected.gamma,
        first=expected_counts.accepted_per_position[0],
        accepted=expected_counts.accepted / expected_counts.drafts,
        design_effect=expected_counts.design_effect,
    )


def served(config: Config) -> ServedDraft:
    """The engine and its draft by `watch.expected`, else by the champion's link in `promote.export.out`. UsageError where nothing
    states which engine runs, or the export is of another one."""
    export = config.promote.export
    named = config.watch.engine or (None if export is None else _ENGINES.get(export.engine))
    directory = _directory(config)
    expected = None if directory is None else read_expected(directory)
    engine = named or (None if expected is None else _ENGINES.get(expected.engine))
    if engine is None:
        raise UsageError(f"watch.engine: the engine is unknown; set it to one of {', '.join(_ENGINES)}")
    if expected is not None and expected.engine != engine:
        raise UsageError(
            f"watch.engine is {engine}, and {directory} was exported for {expected.engine}: engines count differently; "
            "correct one of them"
        )
    return ServedDraft(engine, expected, directory is not None and _is_link(directory, config))


def _is_link(directory: Path, config: Config) -> bool:
    return config.watch.expected is None or directory.is_symlink()


def check_countable(served_draft: ServedDraft, settings: WatchConfig) -> None:
    """UsageError where nothing states how many tokens the counters' drafts had, so no share could be computed."""
    names = FACTS[served_draft.engine].counters
    is_counted = bool(names.draft_tokens or names.drafted_per_position)
    if settings.endpoints and not is_counted and served_draft.expected is None and settings.draft_length is None:
        raise UsageError(
            f"watch.draft_length: {FACTS[served_draft.engine].title} does not count draft tokens, and there is no export that "
            "states the draft length; set it to the draft tokens of a draft"
        )


def _directory(config: Config) -> Path | None:
    if (named := config.watch.expected) is not None:
        directory = Path(named).parent if Path(named).name == FILE else Path(named)
        if not (directory / FILE).exists():
            raise UsageError(f"watch.expected: {directory / FILE}: no such file; name an exported directory")
        return directory
    return None if config.promote.export is None else linked_directory(config.promote.export)

"""What the champion's export says of the engine: `expected.json`, where there is one."""

from pathlib import Path

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.export.schema import EXPECTED, FILE, Expected
from pipeline.handover.link import linked_directory


def find_expected(config: Config) -> Expected | None:
    """Of `watch.expected`, else of what the link in `promote.export.out` points to; None where nothing is exported. UsageError
    where watch.expected names nothing."""
    if config.watch.expected is not None:
        named = Path(config.watch.expected)
        path = named / FILE if named.is_dir() else named
        if not path.is_file():
            raise UsageError(f"watch.expected: {path}: no such file; name an exported directory or its {FILE}")
        return EXPECTED.read(path)
    directory = None if config.promote.export is None else linked_directory(config.promote.export)
    return None if directory is None else EXPECTED.find(directory / FILE)


def expected_gamma(config: Config, otherwise: int) -> int:
    """The draft length that the engine was exported with; `otherwise` where nothing was exported."""
    found = find_expected(config)
    return otherwise if found is None else found.gamma

"""Says what is not in line with the alias `champion`. Changes nothing."""

from pipeline.config.root import Config
from pipeline.errors import RegistryUnavailable, UnderstudyError
from pipeline.export.link import exported_directory, linked_directory
from pipeline.handover.settled import SETTLED
from pipeline.notices.send import receiver_name
from pipeline.progress import Progress
from pipeline.registry.registry import registry_for
from pipeline.store.artifacts import Store


def difference(config: Config, store: Store) -> str:
    """The first thing that `understudy champion settle` would change; empty if there is none. Reads the registry."""
    registry = registry_for(config, store)
    entry, promote = registry.entry(), config.promote
    if entry.is_moved_by_hand:
        return f"the alias champion was moved by hand to version {entry.champion or 'none'}"
    if promote.export is not None:
        link = linked_directory(promote.export)
        wanted = exported_directory(promote.export, entry.champion) if entry.champion else None
        if link != wanted:
            return (
                f"the link in {promote.export.out} points to {'nothing' if link is None else link.name}, and the champion is "
                f"{f'version {entry.champion}' if entry.champion else 'none'}"
            )
    settled, change = SETTLED.find(store, registry.name), entry.last_change
    if promote.notice is not None and change is not None:
        known = 0 if settled is None or settled.change > entry.change else settled.told(receiver_name(promote.notice))
        if known < change.number:
            return f"no notice of change {change.number} was accepted"
    return ""


def report_difference(config: Config, store: Store, progress: Progress) -> None:
    """Print the difference, or why it is not known."""
    try:
        differs = difference(config, store)
    except RegistryUnavailable:
        return  # the command itself reports it
    except UnderstudyError as error:
        progress.warn(str(error))
        return
    if differs:
        progress.warn(f"not settled: {differs}; run `understudy champion settle CONFIG`")

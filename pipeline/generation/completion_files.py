"""The files of a completion store, and which prompts they are of. Torch-free, unlike `completion_store.py`."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.errors import UnderstudyError
from pipeline.store.own_files import reads_own_files

_COMPLETIONS = ".completions.arrow"


def completion_files(directory: Path, prefix: str = "") -> list[Path]:
    """The completion file of each complete shard whose name begins with `prefix`, in order."""
    return sorted(directory.glob(f"{prefix}*{_COMPLETIONS}"))


def text_ids(directory: Path, splits: Collection[str]) -> dict[str, str]:
    """The text id of every prompt of these splits that has a completion, by the prompt's id."""
    return dict(_rows(directory, splits, "id", "text_id"))


def modes(directory: Path, splits: Collection[str]) -> frozenset[str]:
    """The modes of the chat template (`corpus.modes`) of the prompts of these splits."""
    return frozenset(mode for (mode,) in _rows(directory, splits, "mode"))


def _rows(directory: Path, splits: Collection[str], *columns: str) -> Iterator[Any]:
    """A tuple of these columns for each completion of a prompt of these splits."""
    for path in completion_files(directory):
        batch = open_batch(path)
        if not set(columns) <= set(batch.schema.names):
            raise other_version(path)
        rows = zip(*(batch[name].to_pylist() for name in columns), strict=True)
        yield from (row for row, split in zip(rows, batch["split"].to_pylist(), strict=True) if split in splits)


@reads_own_files("an Arrow file of an artifact: a stage compares its SHA-256 before it reads it")
def open_batch(path: Path) -> Any:
    """The rows of one file, memory-mapped. UnderstudyError if it is missing or damaged."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return reader.get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise UnderstudyError(
            f"{path}: missing or damaged completion file ({error}); delete its directory and run again"
        ) from None


def other_version(path: Path) -> UnderstudyError:
    return UnderstudyError(
        f"{path}: written by another version, whose completions this one does not read; run the config again, or name newer "
        "completions (--completions DIR). The old files can stay"
    )


def shard_facts(directory: Path, prefix: str = "") -> Iterator[tuple[str, Mapping[str, str]]]:
    """The name of every complete shard, in order, with its facts, as given to `write_shard`. UnderstudyError names a damaged
    file."""
    for path in completion_files(directory, prefix):
        yield path.name.removesuffix(_COMPLETIONS), _facts(path)


def facts_of_shard(directory: Path, name: str) -> Mapping[str, str] | None:
    """The facts of this shard; None while it is not complete."""
    path = directory / f"{name}{_COMPLETIONS}"
    return _facts(path) if path.exists() else None


def _facts(path: Path) -> Mapping[str, str]:
    metadata = open_batch(path).schema.metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}

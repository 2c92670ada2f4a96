"""What this store has told of the champion: the file `handover/<name>.json`. Nothing else says which notices were accepted, and
of which change a person has seen the end."""

from dataclasses import asdict
from pathlib import Path

from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.parsing import Count, Text, format_of, stored


@stored(name="record of notices", kw_only=False)
class Settled:
    """`change`: the last change whose end was printed; `noticed`: by receiver, the last change whose notice was accepted."""

    change: Count
    noticed: dict[Text, Count]


SETTLED = format_of(Settled)


def read_settled(store: Store, name: str) -> Settled | None:
    """None where nothing was settled yet. UnderstudyError for a damaged file."""
    return SETTLED.find(_path(store, name))


def write_settled(store: Store, name: str, settled: Settled) -> None:
    """Replace the file atomically."""
    write_json(_path(store, name), asdict(settled))


def _path(store: Store, name: str) -> Path:
    return store.root / "handover" / f"{name}.json"

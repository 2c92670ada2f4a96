"""What this store has told of the champion: the file `handover/<name>.json`. Nothing else says which notices were accepted, and
of which change a person has seen the end."""

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from pipeline.store.artifacts import Store
from pipeline.store.files import damaged, read_json, write_json
from pipeline.store.parsing import KNOWN_FIELDS_ONLY, Count, Text, parse


@dataclass(frozen=True)
class Settled:
    """`change`: the last change whose end was printed; `noticed`: by receiver, the last change whose notice was accepted."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    change: Count
    noticed: dict[Text, Count]


_ADAPTER = TypeAdapter(Settled)


def read_settled(store: Store, name: str) -> Settled | None:
    """None where nothing was settled yet. UnderstudyError for a damaged file."""
    path = _path(store, name)
    if not path.exists():
        return None
    try:
        return parse(_ADAPTER, read_json(path))
    except ValueError as error:
        raise damaged(path, str(error)) from None


def write_settled(store: Store, name: str, settled: Settled) -> None:
    """Replace the file atomically."""
    write_json(_path(store, name), asdict(settled))


def _path(store: Store, name: str) -> Path:
    return store.root / "handover" / f"{name}.json"

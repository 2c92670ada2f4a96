"""State files: small JSON files of the store, which one command writes and a later one reads and replaces."""

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipeline.store.artifacts import Store
from pipeline.store.files import write_json
from pipeline.store.parsing import Format

T = TypeVar("T")


@dataclass(frozen=True)
class StateFile(Generic[T]):
    """One kind of state file. `name`: its name in the store, with `{}` for what there is one of each for, such as the name of a
    registered model."""

    kind: Format[T]
    name: str

    def path(self, store: Store, of: str = "") -> Path:
        """The path of the file, for messages."""
        return store.state(self.name.format(of))

    def find(self, store: Store, of: str = "") -> T | None:
        """None where nothing was written yet. UnderstudyError of one line for a damaged file, with what to do."""
        return self.kind.find(self.path(store, of))

    def keys(self, store: Store, of: str) -> list[str]:
        """`of`, and each `of@...`, that has a file: where there may be several for one thing. Names have no `@`."""
        path = self.path(store, of)
        others = (
            file.name.removesuffix(".json") for file in path.parent.glob(f"{path.name.removesuffix('.json')}@*.json")
        )
        return [name for name in (of, *sorted(others)) if self.path(store, name).exists()]

    def write(self, store: Store, value: T, of: str = "") -> None:
        """Replace the file atomically."""
        write_json(self.path(store, of), _json(value))

    def changing(self, store: Store, of: str = "") -> AbstractContextManager[None]:
        """Read, change and write inside: see `Store.changing`."""
        return store.changing(self.path(store, of))


def _json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items()}
    return [_json(part) for part in value] if isinstance(value, list) else value

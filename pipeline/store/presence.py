"""Whether the store's directory is still there: one that was removed, moved or unmounted under a run makes anything fail."""

import os
from types import TracebackType

from pipeline.errors import UnderstudyError
from pipeline.store.artifacts import Store


class Presence:
    """Holds a directory while a run is at work in it. Within the block, errors that a lost directory causes are reported as that:
    UnderstudyError in place of an error, and at the end."""

    def __init__(self, store: Store) -> None:
        self._root = store.root
        self._held: int | None = None

    def __enter__(self) -> "Presence":
        # The open descriptor keeps the directory's number from being given to another one.
        self._held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                self.require()
        finally:
            if self._held is not None:
                os.close(self._held)
            self._held = None

    @property
    def is_lost(self) -> bool:
        """Whether the path names another directory by now, or none."""
        try:
            return self._held is not None and not os.path.samestat(os.fstat(self._held), os.stat(self._root))
        except OSError:
            return True

    def require(self) -> None:
        """UnderstudyError if the directory is lost."""
        if self.is_lost:
            raise UnderstudyError(
                f"--store {self._root}: this directory was removed, moved or unmounted while the run was at work; put it back "
                "and run again"
            )

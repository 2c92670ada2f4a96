"""MLflow's database as a SQLite file: its URI, and its creation.

SQLAlchemy reads `?` in a URI as the start of options, and from 2.1 on it decodes `%`, so both are quoted. A new file is made with
a temporary name, because a process that is killed within MLflow's migrations leaves tables that the next one cannot create.
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from pipeline.errors import UsageError
from pipeline.store.atomic import sync, temporary_directory

PREFIX = "sqlite:///"


def uri_of(path: Path) -> str:
    """The URI of the database in the file `path`. UsageError for a path that this SQLAlchemy has no URI for."""
    text = str(path)
    if _decodes():
        text = text.replace("%", "%25").replace("?", "%3F")
    elif "?" in text:
        raise UsageError(
            f"{path}: SQLAlchemy before 2.1 cannot open a database below a name with `?`; choose another --store"
        )
    return f"{PREFIX}{text}"


def path_of(uri: str) -> Path:
    """The absolute path of the file that SQLAlchemy opens for `uri`, which begins with PREFIX."""
    text = _undecoded(uri)
    return Path(unquote(text) if _decodes() else text).absolute()


def options_of(uri: str) -> str:
    """What follows `?` in a URI, with the mark; empty if there is nothing."""
    _, mark, options = uri.partition("?")
    return mark + options


def make(path: Path, artifacts: Path) -> None:
    """Make an empty database at `path` if there is none, whole or not at all. Of two processes that do so at once the first wins.

    `artifacts` is the place of MLflow's default experiment. Hold the store's lock, so that one process waits for the other.
    """
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path) as aside:  # SQLite's journal lies in it too
        uri = uri_of(aside / path.name)
        with opening(uri):
            made = SqlAlchemyStore(uri, artifacts.as_uri())
            made.engine.dispose()
        sync(aside / path.name)
        _move(aside / path.name, path)
    sync(path.parent)


def _move(new: Path, path: Path) -> None:
    """Never over a database that a process with another store has made in the meantime."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            new.rename(path)


@contextlib.contextmanager
def opening(uri: str) -> Iterator[None]:
    """MLflow creates the directory of a file that it opens, named as in the URI. One with a quoted name is removed again."""
    written = Path(_undecoded(uri)).absolute().parent
    missing = [place for place in (written, *written.parents) if not place.exists()]
    if written == path_of(uri).parent:
        missing = []
    try:
        yield
    finally:
        for place in missing:
            with contextlib.suppress(OSError):  # another process removes it too
                place.rmdir()


def _undecoded(uri: str) -> str:
    return uri.removeprefix(PREFIX).partition("?")[0]


def _decodes() -> bool:
    major, minor = importlib.metadata.version("sqlalchemy").split(".")[:2]
    return (int(major), int(minor)) >= (2, 1)

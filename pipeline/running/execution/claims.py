"""Who makes a part: a file for each part that is being made, for other tasks on the same store to see.

A claim saves work and protects nothing: a part has the same bytes whoever makes it. So where two processes take over the claim of
a dead one at the same moment, both make the part. File locks would not do: some network file systems keep them to one machine.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pipeline.store.atomic import replacing
from pipeline.store.own_files import reads_own_files
from pipeline.store.processes import is_gone, own_tag, repeating

SILENT_SECONDS = 120.0  # after which a claim from another machine or container is taken over


class Claims:
    """The claims of this process on parts of an artifact. They count while the process lives; of another machine's, or another
    container's, only the age is known. The files are `directory`/ARTIFACT.PART.claim."""

    def __init__(self, directory: Path, artifact: str) -> None:
        self._directory, self._artifact, self._held = directory, artifact, set[Path]()

    @contextlib.contextmanager
    def kept(self) -> Iterator["Claims"]:
        """Renew the claims that are held, and give them up at the end; those that dead processes have left go too."""
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            with repeating(self._renew):
                yield self
        finally:
            for path in self._directory.glob(f"{self._artifact}.*.claim"):
                tag = _read(path)[0]
                if tag == own_tag() or is_gone(tag, path, SILENT_SECONDS):
                    path.unlink(missing_ok=True)
            self._held.clear()

    def take(self, name: str) -> bool:
        """Claim a part. False if a process that lives, as far as is known, has claimed it."""
        path, own = self._path(name), f"{own_tag()} {socket.gethostname()} {os.getpid()}"
        try:
            with path.open("x", encoding="utf-8") as stream:
                stream.write(own)
        except FileExistsError:
            if not is_gone(_read(path)[0], path, SILENT_SECONDS):
                return False
            with replacing(path) as partial:
                partial.write_text(own, encoding="utf-8")
        self._held.add(path)
        return True

    def release(self, name: str) -> None:
        """The part is done, or given up."""
        self._drop(self._path(name))

    def holder(self, name: str) -> str:
        """Who has claimed a part, for messages; empty if nobody has, or whoever has is gone."""
        path = self._path(name)
        tag, host, process = _read(path)
        return "" if is_gone(tag, path, SILENT_SECONDS) else f"{host} (process {process})"

    def _path(self, name: str) -> Path:
        return self._directory / f"{self._artifact}.{name}.claim"

    def _drop(self, path: Path) -> None:
        self._held.discard(path)
        if _read(path)[0] == own_tag():  # else another process has taken it over
            path.unlink(missing_ok=True)

    def _renew(self) -> None:
        for path in list(self._held):
            with contextlib.suppress(OSError):
                os.utime(path)


@reads_own_files("a claim; where it cannot be read, its age alone counts (test_spread.py)")
def _read(path: Path) -> tuple[str, str, str]:
    """Tag, host and process id of a claim; empty where it is gone or cannot be read: then its age decides."""
    try:
        tag, host, process = path.read_text(encoding="utf-8").split(" ")
    except (OSError, ValueError):
        return "", "", ""
    return tag, host, process

"""The store: artifacts, which are complete or absent, and locks. Does not depend on stages or configs.

A directory under `artifacts/` is complete: it was built in `work/` and renamed in one step after its manifest, the last
file, was written. The files of a killed run stay in `work/` and are never read as a result.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, StrictBool, StrictInt

from pipeline.errors import UnderstudyError, UsageError
from pipeline.store.atomic import PARTIAL, remove_left_behind, sync
from pipeline.store.files import content_key, file_sha256, write_json
from pipeline.store.locks import Locks
from pipeline.store.parsing import Count, Number, SmallWhole, Text, format_of, stored
from pipeline.store.times import days_since, seconds_of

MANIFEST = "manifest.json"


def _inside(name: str) -> str:
    """The name of a file within its artifact."""
    parts = Path(name).parts
    if not name.isprintable() or name in ("", ".") or ".." in parts or Path(name).is_absolute():
        raise ValueError("not the name of a file within the artifact")
    return name


def _time(text: str) -> str:
    seconds_of(text)
    return text


@stored(kw_only=False)
class FileEntry:
    """A file of an artifact."""

    size: Count  # bytes
    mtime_ns: StrictInt
    sha256: Text


@stored(name="manifest")
class Manifest:
    """The content of `manifest.json`. What depends on the stage is read elsewhere: settings, task, notes, decision."""

    stage: Text
    key: Text
    files: dict[Annotated[Text, AfterValidator(_inside)], FileEntry]
    figures: dict[Text, SmallWhole | Number | bool | None]
    provides: dict[
        Text, Text
    ]  # digests of named parts of the artifact, on which a later stage may depend instead of its key
    part: Text = ""
    task: dict[Text, Any] = field(default_factory=dict)
    version: Count = 0  # of the stage
    settings: dict[Text, Any] = field(default_factory=dict)  # that are in the key
    inputs: dict[Text, Text] = field(default_factory=dict)  # digests and keys
    created: Annotated[Text, AfterValidator(_time)] = "1970-01-01T00:00:00Z"
    seed: StrictInt = 0
    seconds: Number = 0.0
    resumed: StrictBool = False  # `seconds` leaves out what tasks of a scheduler, or a killed run, had done before
    peak_memory: dict[Text, Number] = field(default_factory=dict)  # bytes: process, gpu
    environment: dict[Text, Text] = field(default_factory=dict)  # versions and machine
    notes: dict[Text, Any] = field(default_factory=dict)
    refused: Text = ""  # why the stage refused the draft; empty if it did not
    decision: dict[Text, Any] | None = None  # what a run's record has of the decision in this artifact


@dataclass(frozen=True)
class Artifact:
    """A committed directory and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def figures(self) -> dict[str, Any]:
        return dict(self.manifest.figures)

    @property
    def provides(self) -> dict[str, str]:
        return dict(self.manifest.provides)

    @property
    def refused(self) -> str:
        return self.manifest.refused

    @property
    def decision(self) -> dict[str, Any] | None:
        return self.manifest.decision

    def _check_listed(self) -> None:
        """A file that was put there later would be read like the others."""
        for path in self.path.rglob("*"):
            name = str(path.relative_to(self.path))
            if path.is_file() and name != MANIFEST and name not in self.manifest.files:
                raise self._damaged(name, "is not a file of this artifact")

    def check_stats(self) -> None:
        """Compare every file's size and mtime with the manifest; a file whose mtime moved is hashed.

        Raises UnderstudyError naming the first file that is missing, was altered or was added.
        """
        self._check_listed()
        for name, entry in self.manifest.files.items():
            path = self.path / name
            try:
                stat = path.stat()
            except FileNotFoundError:
                raise self._damaged(name, "is missing") from None
            if stat.st_size != entry.size:
                raise self._damaged(name, f"has {stat.st_size} bytes instead of {entry.size}")
            if stat.st_mtime_ns != entry.mtime_ns:
                self._check_hash(name)

    def check_hashes(self) -> None:
        """Hash every file; raises UnderstudyError naming the first that differs from the manifest or is not in it."""
        self._check_listed()
        for name in self.manifest.files:
            if not (self.path / name).exists():
                raise self._damaged(name, "is missing")
            self._check_hash(name)

    def _check_hash(self, name: str) -> None:
        if file_sha256(self.path / name) != self.manifest.files[name].sha256:
            raise self._damaged(name, "was altered after it was written (its SHA-256 differs)")

    def _damaged(self, name: str, what: str) -> UnderstudyError:
        return UnderstudyError(f"{self.path / name} {what}; delete {self.path} and run again to rebuild it")


class Store(Locks):
    """Artifacts, runs, state and locks under one directory, shared by any number of processes of one machine.

    Where they lie is known here only: nothing outside `pipeline/store` uses `root`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        super().__init__(self.root / "locks")
        try:
            str(self.root).encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"--store {root}: no UTF-8, so no database has a URI there; choose another directory"
            ) from None
        nearest = next(place for place in (self.root, *self.root.parents) if os.path.exists(place))
        if not nearest.is_dir():
            raise UsageError(
                f"--store {root}: {'' if nearest == self.root else f'{nearest} is '}a file, not a directory; name another"
            )

    def create(self) -> None:
        """Create the directory if it is not there; UsageError where no directory can be, such as under /proc."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError:
            raise UsageError(f"--store {self.root}: this directory cannot be created; choose another") from None

    def __str__(self) -> str:
        """The path, which is the name of the store for people."""
        return str(self.root)

    @property
    def exists(self) -> bool:
        """Whether a run has been here."""
        return self.artifacts.is_dir()

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def work(self) -> Path:
        """The directory of artifacts that are being made, and of what else a killed process leaves."""
        return self.root / "work"

    @property
    def parts(self) -> Path:
        """Claims, parts that are not finished, and kept parts."""
        return self.root / "parts"

    @property
    def champions(self) -> Path:
        """Registered drafts that were downloaded, by digest."""
        return self.root / "champions"

    @property
    def mlflow(self) -> Path:
        """MLflow's database and artifacts, where no server has them."""
        return self.root / "mlflow"

    @property
    def trash(self) -> Path:
        """What `store gc` deletes."""
        return self.root / "trash"

    def state(self, name: str) -> Path:
        """A state file (`state_files.py`)."""
        return self.root / f"{name}.json"

    def directory(self, stage: str, key: str) -> Path:
        return self.artifacts / f"{stage}-{key}"

    def relative(self, path: Path) -> Path:
        """A path within the store, as it is named whatever the store's own place."""
        return path.relative_to(self.root)

    def remove_left_behind(self) -> list[Path]:
        """Delete the temporary files of processes that have ended, except in artifacts, which are as listed, and in MLflow's."""
        return remove_left_behind(self.root, skip={self.artifacts, self.mlflow / "artifacts"})

    def find(self, stage: str, key: str, check: bool = True) -> Artifact | None:
        """The committed artifact, its files checked by size and mtime, unless `check` is False; None if there is none."""
        directory = self.directory(stage, key)
        if not (directory / MANIFEST).exists():
            if directory.exists():
                raise UnderstudyError(f"{directory} has no {MANIFEST}, so it was changed; delete it and run again")
            return None
        artifact = Artifact(directory, read_manifest(directory))
        if (artifact.manifest.stage, artifact.key) != (stage, key):
            raise UnderstudyError(
                f"{directory} holds {artifact.manifest.stage}-{artifact.key}, so it was copied or renamed; delete it and run "
                "again"
            )
        if check:
            artifact.check_stats()
        return artifact

    @contextmanager
    def changing(self, path: Path) -> Iterator[None]:
        """Read a file of the store, change what was read and replace the file, all inside: of two processes that do so at once
        neither loses what the other has written. Keep it short: everybody waits."""
        with self.lock(f"file-{content_key(str(self.relative(path)))}"):
            yield

    def open_work(self, stage: str, key: str, resumable: bool) -> Path:
        """The directory to build in. The files of an interrupted run are kept only if the stage can resume."""
        work = self.work / f"{stage}-{key}"
        if work.exists() and not resumable:
            shutil.rmtree(work)
        work.mkdir(parents=True, exist_ok=True)
        return work

    def commit(self, work: Path, manifest: Mapping[str, Any]) -> Artifact:
        """Complete `work` with its manifest, the last file written, and rename it into place."""
        # Left behind by a run that was killed before the rename, or in the middle of writing a file.
        for stray in (work / MANIFEST, *work.rglob(PARTIAL)):
            if stray.is_dir():
                shutil.rmtree(stray)
            else:
                stray.unlink(missing_ok=True)
        files = {}
        for path in sorted(path for path in work.rglob("*") if path.is_file()):
            stat = path.stat()
            files[str(path.relative_to(work))] = {
                "size": stat.st_size,
                "mtime_ns": stat.st_mtime_ns,
                "sha256": file_sha256(path),
            }
        complete = {**manifest, "files": files}
        write_json(work / MANIFEST, complete)
        target = self.directory(manifest["stage"], manifest["key"])
        target.parent.mkdir(parents=True, exist_ok=True)
        work.rename(target)
        sync(target.parent)
        return Artifact(target, format_of(Manifest).parse(complete, str(target / MANIFEST)))


def age_in_days(directory: Path) -> float:
    """The age of an artifact."""
    return days_since(read_manifest(directory).created)


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an artifact; UnderstudyError names a file that is missing, or is not a manifest."""
    return format_of(Manifest).read(directory / MANIFEST)

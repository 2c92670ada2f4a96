"""The Airflow files of this version, as `understudy dags` writes them into a DAG folder. Does not import them.

The first line of a written file has the version and a hash of the rest, so that a file which somebody changed is distinguished
from one that an earlier version wrote.
"""

import hashlib
import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pipeline
from pipeline.errors import UsageError
from pipeline.store.files import write_user_text
from pipeline.store.own_files import reads_own_files

_SOURCE = Path(pipeline.__file__).parent / "dags"
_HEADER = re.compile(
    r"# Written by `understudy dags`, version (?P<version>\S+); sha256 of the rest: (?P<digest>[0-9a-f]{64})\n"
)

What = Literal["written", "up to date", "replaced"]


@dataclass(frozen=True)
class Written:
    """What became of one file. `before`: the version that had written it."""

    path: Path
    what: What
    before: str = ""


@reads_own_files("a DAG file of this installation")
def write_dags(out: Path, overwrite: bool) -> list[Written]:
    """Write the files into the directory `out`, which is made if it is not there.

    UsageError, before any file is written, if one that is there was changed or is not of Understudy, unless `overwrite`.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: not a directory; name the DAG folder, or a new folder in it")
    texts = {out / path.name: _with_header(path.read_text(encoding="utf-8")) for path in sorted(_SOURCE.glob("*.py"))}
    if not overwrite:
        _require_unchanged(texts)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}; choose another directory") from None
    return [_write(path, text) for path, text in texts.items()]


def _with_header(text: str) -> str:
    version, digest = importlib.metadata.version("understudy"), hashlib.sha256(text.encode()).hexdigest()
    return f"# Written by `understudy dags`, version {version}; sha256 of the rest: {digest}\n{text}"


@reads_own_files("a DAG file; its text is only hashed (test_dag_files.py)")
def _require_unchanged(paths: Iterable[Path]) -> None:
    changed = [path for path in paths if path.exists() and _written_by(path.read_text(errors="replace")) is None]
    if changed:
        raise UsageError(
            f"{', '.join(map(str, changed))}: changed since `understudy dags` wrote it, or not written by it; "
            "keep what you need of it, then add --overwrite"
        )


def _written_by(text: str) -> str | None:
    """The version that wrote this text as it is; None if it was changed since, or written by something else."""
    header = _HEADER.match(text)
    if header is None or hashlib.sha256(text[header.end() :].encode()).hexdigest() != header["digest"]:
        return None
    return header["version"]


@reads_own_files("a DAG file; its text is only hashed (test_dag_files.py)")
def _write(path: Path, text: str) -> Written:
    if not path.exists():
        write_user_text(path, text, "--out")
        return Written(path, "written")
    before = path.read_text(errors="replace")
    if before == text:
        return Written(path, "up to date")
    write_user_text(path, text, "--out")
    return Written(path, "replaced", _written_by(before) or "a changed file")

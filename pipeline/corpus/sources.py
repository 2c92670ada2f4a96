"""Which files a prompt source has and in which format they are, from names alone. Reads no content and has no torch.

A path is a file, a directory or a glob. All files of a source have one format; a directory that holds several is an error,
because one of them may be something else, such as a README.txt.
"""

import glob
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.corpus import HUB_DATA, SourceFormat
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

FORMATS: dict[str, SourceFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".parquet": "parquet",
}
"""By file extension, before the extension of a compression."""
COMPRESSIONS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
TITLES: dict[SourceFormat, str] = {
    "jsonl": "JSON lines",
    "json": "JSON",
    "csv": "CSV",
    "tsv": "TSV",
    "text": "text, a prompt a line",
    "parquet": "Parquet",
    "dataset": "a `datasets` directory",
}
_KNOWN = ", ".join(FORMATS)
_PACKED = "unpack it and name the directory"
_AS_LINES = "write its prompts as JSON lines"
_OTHER = dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), _PACKED)
_OTHER |= dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV")
_OTHER |= dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "export the table as CSV or JSON lines")
_OTHER |= dict.fromkeys((".arrow", ".feather", ".orc", ".avro"), "write the table as Parquet")
_OTHER |= dict.fromkeys(
    (".yaml", ".yml", ".xml", ".html", ".pdf", ".docx", ".pkl", ".pickle", ".npy", ".pt"), _AS_LINES
)
"""What to do about a file that no format reads, by extension."""
_HUB_DATA = re.compile(f"{HUB_DATA.pattern}$")
_DATASET_MARKS = ("state.json", "dataset_dict.json", "dataset_info.json")
_ABOUT = (*_DATASET_MARKS, "dataset_infos.json", "config.json")  # files that describe a data set and hold no rows


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source in reading order. `root`: the directory (or the file) that names in messages are relative to."""

    root: Path
    files: tuple[Path, ...]
    format: SourceFormat

    def name(self, file: Path) -> str:
        """The name of one of the files, in messages and digests."""
        return file.relative_to(self.root).as_posix() if file != self.root else file.name


def find_files(path: Path, wanted: SourceFormat, name: str) -> SourceFiles:
    """The files at `path`: a file, a directory or a glob. `wanted` is `format` of the source.

    UsageError, which begins with `name`, where there are none, and where the format is not known from their names. `name` is the
    key, or the option of a command, that states where they are.
    """
    if path.is_dir():
        return _directory(path, wanted, name)
    if path.is_file():
        return SourceFiles(path, (path,), wanted if wanted != "auto" else _format(path, name))
    if path.exists():
        raise UsageError(
            f"{name}: neither a file nor a directory; a run reads its prompts twice, so save them in a file"
        )
    if glob.has_magic(str(path)):
        return _glob(path, wanted, name)
    if path.is_symlink():
        raise UsageError(f"{name}: a link to a file that is not there")
    raise UsageError(f"{name}: no such file or directory{_nearest(path) or _of_hub(path, name)}")


def digested_files(source: SourceFiles) -> list[Path]:
    """The files whose names and contents are the content of a source."""
    if source.format != "dataset":
        return list(source.files)
    return sorted(item for item in source.root.rglob("*") if item.is_file())


def format_within(file: Path) -> SourceFormat | None:
    """The format of a file of a directory, by its path from there. None: it is not read with the directory."""
    return None if _hidden(file) or file.name in _ABOUT else _format_of(file)


def compression(path: Path) -> str | None:
    """The compression of a file, by its extension."""
    return COMPRESSIONS.get(path.suffix.lower())


def jq_command(file: str, step: str) -> str:
    """The shell command that prints what `step` takes out of a file of JSON, a row a line."""
    jq, packed = f"jq -c {shlex.quote(step)}", compression(Path(file))
    return f"{packed} -dc {shlex.quote(file)} | {jq}" if packed else f"{jq} {shlex.quote(file)}"


def _format(path: Path, name: str) -> SourceFormat:
    format_ = _format_of(path)
    if format_ is None:
        known = f"known are {_KNOWN}, each also with {', '.join(COMPRESSIONS)}"
        raise UsageError(f"{name}: unknown file extension; {known}; {_what_to_do(path, name)}")
    return format_


def _how_to_set(name: str) -> str:
    """How the user of the key or option `name` states a format."""
    return "give --prompt-format" if name.startswith("--") else "set `format` of the source"


def _what_to_do(path: Path, name: str) -> str:
    """About a file of no known format."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if ".parquet" in suffixes:  # such as p.parquet.gzip
        return "Parquet files are compressed within, so name it .parquet"
    other = next((_OTHER[suffix] for suffix in reversed(suffixes) if suffix in _OTHER), None)
    return other or f"rename the file, or {_how_to_set(name)}, such as `text` for a prompt a line"


def _format_of(path: Path) -> SourceFormat | None:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    format_ = FORMATS.get(suffixes[-1]) if suffixes else None
    return None if format_ == "parquet" and compression(path) else format_  # is compressed within


def _directory(path: Path, wanted: SourceFormat, name: str) -> SourceFiles:
    saved = any((path / mark).is_file() for mark in _DATASET_MARKS)
    if wanted == "dataset" or (wanted == "auto" and saved):
        if not saved:
            raise UsageError(f"{name}: not a directory written by save_to_disk")
        return SourceFiles(path, (path,), "dataset")
    within = (item for item in _within(path, name) if not _hidden(item.relative_to(path)) and item.name not in _ABOUT)
    files = _present(within, name)
    known = [file for file in files if format_within(file.relative_to(path)) is not None]
    if not known:
        raise UsageError(
            f"{name}: this directory holds no file of prompts ({_KNOWN}), and was not written by save_to_disk"
            f"{_instead(path, files, name)}"
        )
    return _of_one_format(path, known, wanted, name)


def _instead(path: Path, files: list[Path], name: str) -> str:
    """What to do about a directory of `files` of unknown formats."""
    counts = Counter(file.suffix.lower() for file in files).most_common(3)
    if not counts:
        return "; it is empty"
    extensions = ", ".join(f"{count:,} {printable(suffix) or 'without extension'}" for suffix, count in counts)
    first = counts[0][0]
    chosen = next(file for file in files if file.suffix.lower() == first)
    if first in _OTHER:
        return f" (found: {extensions}); {_OTHER[first]}"
    pattern = f"{path}/**/*{printable(chosen.suffix)}"
    return f" (found: {extensions}); {_how_to_set(name)}, and name the files with a glob such as {pattern}"


def _within(path: Path, name: str) -> Iterator[Path]:
    """What lies in a directory and its folders, also in those behind links, each folder once."""

    def unreadable(error: OSError) -> None:
        raise UsageError(f"{name}: {printable(str(error.filename))}: {error.strerror}")

    seen: set[str] = set()
    for folder, folders, files in os.walk(path, onerror=unreadable, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = [] if real in seen else sorted(folders)
        if real not in seen:
            yield from (Path(folder) / file for file in files)
        seen.add(real)


def _present(paths: Iterable[Path], name: str) -> list[Path]:
    """The files of `paths`, sorted. UsageError for a link to nowhere, whose prompts would be missing without a word."""
    items = sorted(paths)
    if lost := next((item for item in items if item.is_symlink() and not item.exists()), None):
        raise UsageError(
            f"{name}: {printable(str(lost))} is a link to a file that is not there; fix or delete the link"
        )
    return [item for item in items if item.is_file()]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _glob(path: Path, wanted: SourceFormat, name: str) -> SourceFiles:
    root = next(
        folder for folder in path.parents if folder.is_dir()
    )  # its name may hold brackets, which match themselves
    matches = glob.iglob(str(path.relative_to(root)), root_dir=root, recursive=True)
    files = _present((root / item for item in matches), name)
    if not files:
        raise UsageError(f"{name}: no file matches{_of_hub(path, name)}")
    if wanted == "auto":
        for file in files:
            _format(file, f"{name}: {printable(file.name)}")
        return _of_one_format(root, files, wanted, name)
    return SourceFiles(root, tuple(files), wanted)


def _of_one_format(root: Path, files: list[Path], wanted: SourceFormat, name: str) -> SourceFiles:
    """`files` have known formats."""
    by_format: dict[SourceFormat, list[Path]] = {}
    for file in files:
        by_format.setdefault(_format(file, name), []).append(file)
    counts = ", ".join(f"{len(files):,} {format}" for format, files in by_format.items())
    if wanted == "auto" and len(by_format) > 1:
        raise UsageError(
            f"{name}: holds files of several formats ({counts}); {_how_to_set(name)}, or give a glob such as "
            f"{root / '*'}{next(iter(FORMATS))}"
        )
    chosen = wanted if wanted != "auto" else next(iter(by_format))
    if chosen not in by_format:
        raise UsageError(f"{name}: format is {chosen}, and the directory holds {counts}")
    return SourceFiles(root, tuple(by_format[chosen]), chosen)


def _nearest(path: Path) -> str:
    """What a mistyped path may mean: a name beside it."""
    import difflib

    try:
        beside = sorted(item.name for item in path.parent.iterdir())
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.75)
    return f"; did you mean {printable(str(path.parent / close[0]))}?" if close else ""


def _of_hub(path: Path, name: str) -> str:
    """How a config names a data set of the hub, where `path` may be one."""
    match = _HUB_DATA.search(str(path))
    if match is None or name.startswith("--") or path.name.lower().endswith((*FORMATS, *COMPRESSIONS)):
        return ""
    return (
        f"; a data set of the hub has its commit in a config, {match['source']}@ and 40 hex digits: "
        f"`understudy init --prompts {match['source']}` writes it"
    )

"""Rows that were appended to JSON lines since the last look, while the files grow and rotate. Memory and state are bounded.

A file is known by its inode and by the bytes before the position up to which it was read. So a file that was renamed is read
on; one that was truncated or replaced is read anew, also where it has grown longer than it was; and a copy, as `copytruncate`
makes it before it truncates, is read from where its original was. Compressed files are of the past.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from pipeline.escaping.terminal import printable
from pipeline.store.json_text import parse_json, regular_file
from pipeline.store.parsing import Count, Flag, Number, Text

_MARK_BYTES = 512  # before a position, by which a file is known
_CHUNK = 1 << 20
_MOST_LINE = 1 << 24  # bytes of a row
_MOST_BYTES = 1 << 30  # of all files in one look; the rest is read at the next
_MOST_FILES = 1000  # in a directory: those that were written last
_CLOCK_SECONDS = 60.0  # by which the clock of a file system may be behind
_KEPT_SECONDS = 2 * 86_400.0  # after which the position in a file that is gone is forgotten
_NAME = re.compile(r"\.(jsonl|ndjson|json|log)\b")  # in a directory; requests.jsonl.1 and .requests-HOUR.jsonl are such
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip")


@dataclass(frozen=True, kw_only=True)
class FilePosition:
    """How far a file was read. `mark`: of the bytes before `position`. `is_within`: it is within a line that is not read: one
    that is too long, or that had begun before the first look. `seen`: when the file was last there, in Unix seconds."""

    name: Text
    inode: Text
    position: Count
    mark: Text
    seen: Number
    is_within: Flag = False


@dataclass(frozen=True, kw_only=True)
class LogPositions:
    """How far the files at `path` were read."""

    path: Text
    time: Number  # of the look, in Unix seconds
    files: tuple[FilePosition, ...] = field(default_factory=tuple)


@dataclass
class _Look:
    """One look at a file or directory. `damaged`: lines that are no JSON objects; `long`: those that are too long."""

    take: Callable[[Any], None]
    left: int  # bytes that may be read
    damaged: int = 0
    example: str = ""
    long: int = 0
    behind: int = 0  # bytes that are read at the next look

    def problems(self) -> Iterator[str]:
        if self.damaged:
            yield f"{self.damaged:,} lines that are no JSON objects; the first: {self.example}"
        if self.long:
            yield f"{self.long:,} lines of more than {_MOST_LINE >> 20} MiB were skipped"
        if self.behind:
            yield f"{self.behind:,} bytes are left for the next look"


def follow(
    path: Path, before: LogPositions | None, now: float, take: Callable[[Any], None]
) -> tuple[LogPositions | None, Sequence[str]]:
    """Call `take` with each row that was appended since `before`. Returns the positions after it, and what could not be read, a
    line each.

    At the first look nothing is read: files are followed from their ends. None where there is nothing to follow yet.
    """
    before = before if before is not None and before.path == str(path) else None
    try:
        files, is_there = dict(_files(path)), path.exists()
    except OSError as error:
        return before, [f"{path}: {error.strerror or error}"]
    problems, look, known = list[str](), _Look(take, _MOST_BYTES), () if before is None else before.files
    if not is_there:
        problems.append(f"{path}: no such file")
    after = list[FilePosition]()
    since = now if before is None else before.time
    continued = set[str]()
    for file, start, origin in _starts(path, files, known, since, now):
        continued |= {origin.inode} if origin is not None else set()
        try:
            after.append(_read_on(file, start, look))
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
            after.append(start)
    there = {position.inode for position in after} | continued
    gone = [position for position in known if position.inode not in there and now - position.seen <= _KEPT_SECONDS]
    kept = (
        sorted(gone, key=lambda position: position.seen)[len(after) - _MOST_FILES :] if len(after) < _MOST_FILES else []
    )
    return LogPositions(path=str(path), time=now, files=(*kept, *after)), [
        *problems,
        *(f"{path}: {problem}" for problem in look.problems()),
    ]


def _files(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files of a directory, those that were written last; of a single file it and the others beside it whose names begin as
    its own does. OSError where the directory cannot be listed."""
    directory = path if path.is_dir() else path.parent
    files = list[tuple[Path, os.stat_result]]()
    with os.scandir(directory) as entries:
        for entry in entries:
            is_named = entry.name.startswith(path.stem) if path != directory else _NAME.search(entry.name)
            if not is_named or entry.name.endswith(_PACKED):
                continue
            with contextlib.suppress(OSError):  # it has just gone
                state = entry.stat()
                if stat.S_ISREG(state.st_mode):
                    files.append((Path(entry.path), state))
    yield from sorted(files, key=lambda item: item[1].st_mtime)[-_MOST_FILES:]


def _starts(
    path: Path, files: dict[Path, os.stat_result], known: Sequence[FilePosition], since: float, now: float
) -> Iterator[tuple[Path, FilePosition, FilePosition | None]]:
    """Each file that is followed, with the position from which it is read on, and the known one that it goes on from. Of files
    that appeared, those are new that were written after the look before, at `since`."""
    origins = {file: _known(file, state, known) for file, state in files.items()}
    owners = {origin.inode: file for file, origin in reversed(origins.items()) if origin is not None}
    owners |= {
        origin.inode: file
        for file, origin in origins.items()
        if origin is not None and origin.inode == _inode(files[file])
    }
    unread = {position.inode: position for position in known if not position.position}
    for file, state in files.items():
        name, inode, origin = file.name, _inode(state), origins[file]
        is_followed = file == path or file.parent == path  # the others are what became of a single file
        is_old = since == now or state.st_mtime < since - _CLOCK_SECONDS
        if origin is not None and owners[origin.inode] == file:
            yield file, replace(origin, name=name, inode=inode, seen=now), origin
        elif origin is not None or (is_followed and is_old and inode not in unread):  # a copy, or from before
            yield file, _at(file, name, inode, state.st_size, now), None
        elif is_followed:
            start = FilePosition(name=name, inode=inode, position=0, mark=_mark_of(b""), seen=now)
            yield file, start, unread.get(inode)


def _known(file: Path, state: os.stat_result, known: Sequence[FilePosition]) -> FilePosition | None:
    """The furthest known position up to which this file is the one that was read; None where nothing was."""
    same = next((position for position in known if position.inode == _inode(state)), None)
    if same is not None and same.position == state.st_size > 0 and state.st_mtime <= same.seen:
        return same  # it has not changed
    try:
        with regular_file(file) as stream:
            for position in sorted(known, key=lambda position: -position.position):
                if 0 < position.position <= state.st_size and _mark(stream, position.position) == position.mark:
                    return position
    except OSError:  # it is reported when the file is read
        return same
    return None


def _at(file: Path, name: str, inode: str, end: int, now: float) -> FilePosition:
    """The end of a file, which may be within a line."""
    mark, is_within = "", False
    with contextlib.suppress(OSError), regular_file(file) as stream:
        mark = _mark(stream, end)
        stream.seek(max(0, end - 1))
        is_within = end > 0 and stream.read(1) != b"\n"
    return FilePosition(name=name, inode=inode, position=end, mark=mark, seen=now, is_within=is_within)


def _read_on(file: Path, start: FilePosition, look: _Look) -> FilePosition:
    """Reads the rows behind a position. The last line stays for the next look until it is whole."""
    with regular_file(file) as stream:
        end = os.fstat(stream.fileno()).st_size
        if end == start.position:
            return start
        if look.left <= 0:
            look.behind += end - start.position
            return start
        position, is_within, rest = start.position, start.is_within, b""
        stream.seek(position)
        while look.left > 0 and (chunk := stream.read(_CHUNK)):
            look.left -= len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not is_within:
                    _take(line, file, position, look)
                is_within, position = False, position + len(line) + 1
            if is_within or len(rest) > _MOST_LINE:
                look.long += not is_within
                is_within, position, rest = True, position + len(rest), b""
        # The last line may have no end. No beginning of an object is itself one, so it is whole if it is one.
        if rest.rstrip().endswith(b"}") and _row(rest) is not None:
            _take(rest, file, position, look)
            position += len(rest)
        look.behind += max(0, end - position - len(rest)) if look.left <= 0 else 0
        return replace(start, position=position, mark=_mark(stream, position), is_within=is_within)


def _take(line: bytes, file: Path, position: int, look: _Look) -> None:
    if not (line := line.strip(b"\x00 \t\r")):  # a truncated file may begin with zeros
        return
    row = _row(line)
    if row is not None:
        look.take(row)
        return
    look.damaged += 1
    look.example = look.example or f"{printable(file.name)} at byte {position:,}"


def _row(line: bytes) -> Any:
    """The object of a line; None for anything else."""
    try:
        row = parse_json(line, foreign=True)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _mark(stream: IO[bytes], position: int) -> str:
    """The mark of the bytes before a position."""
    begin = max(0, position - _MARK_BYTES)
    stream.seek(begin)
    return _mark_of(stream.read(position - begin))


def _mark_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _inode(state: os.stat_result) -> str:
    return f"{state.st_dev}:{state.st_ino}"

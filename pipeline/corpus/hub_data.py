"""Prompts of a data set of the hub: `org/name[@revision][:PATTERN]` as files on this machine, read like any others.

Files are fetched as they are, at one commit; no loading script of a data set runs.
"""

import os
import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path

from pipeline.config.corpus import HUB_DATA, PromptSource, SourceFormat, source_path
from pipeline.corpus.sources import COMPRESSIONS, FORMATS, compression, find_files, format_within
from pipeline.errors import UnderstudyError, UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.hub import commit_of, fetch_data, list_data

_SHARD = re.compile(r"-(\d{5})-of-(\d{5}).*$")
_SHOWN = 8
_ENDS = tuple(FORMATS) + tuple(COMPRESSIONS)


@dataclass(frozen=True)
class NamedPrompts:
    """Prompts that are on this machine."""

    path: Path
    name: str  # as a config names them: a data set of the hub with its commit and the files that are read, or the path


def named_prompts(text: str, option: str, wanted: SourceFormat) -> NamedPrompts:
    """What the value of `option` names here, or the fetched data set of the hub. Whatever is here, or is named as a file or a
    path, is no data set of the hub. Only files that match the pattern are fetched, or, without one, those of the one split of
    format `wanted`.

    UsageError for a data set that the hub does not have, without files to read, or with files of several formats or splits;
    UnderstudyError where the hub cannot be reached, or only a part of the files. All state what to do.
    """
    match = HUB_DATA.fullmatch(text)
    if match is None or os.path.lexists(text) or _is_path(Path(match["source"]), match):
        return NamedPrompts(Path(text), str(source_path(Path(text))))
    source, pattern = match["source"], match["pattern"]
    commit = commit_of(source, match["revision"], "data set")
    if pattern is None:
        pattern = _one_set(list_data(source, commit), text, option, wanted)
    directory, name = fetch_data(source, commit, _fetched(pattern)), f"{source}@{commit}:{pattern}"
    try:
        files = find_files(directory / pattern, wanted, f"{option} {text}")
    except UsageError as error:  # names what there is as paths of the cache
        shown = text if match["pattern"] is None else text.removesuffix(pattern)
        raise UsageError(str(error).replace(f"{directory}/", shown)) from None
    _require_whole([file.relative_to(directory).as_posix() for file in files.files], pattern, name)
    return NamedPrompts(directory / pattern, name)


def source_files(number: int, source: PromptSource) -> Path:
    """The files of a source of a config on this machine, fetched if the hub has them. Raises as `named_prompts`."""
    if source.is_reference or not source.is_hub:
        return Path(source.path)
    return named_prompts(source.path, f"corpus.sources.{number}.path:", source.format).path


def _require_whole(names: list[str], pattern: str, name: str) -> None:
    """UnderstudyError where shards that the pattern matches are missing: a cache that was filled in part, without the hub."""
    ends, wanted = dict[tuple[str, str], dict[str, str]](), _fetched(pattern)
    for file in names:
        if shard := _SHARD.search(file):
            ends.setdefault((file[: shard.start()], shard[2]), {})[shard[1]] = file[shard.end(2) :]
    for (split, total), there in ends.items():
        end = next(iter(there.values()))
        others = (f"{split}-{number:05}-of-{total}{end}" for number in range(int(total)) if f"{number:05}" not in there)
        if len(there) < int(total) and any(fnmatchcase(file, glob) for file in others for glob in wanted):
            raise UnderstudyError(
                f"{name}: only {len(there):,} of {int(total):,} shards of {split} are in this machine's cache, and the hub gave "
                "no others; fetch them with a network, or name those that you want"
            )


def _one_set(names: list[str], text: str, option: str, wanted: SourceFormat) -> str:
    """The pattern of the files of a data set that are read. UsageError for several formats or sets, and for none."""
    formats = {name: format_ for name in sorted(names) if (format_ := format_within(Path(name))) is not None}
    held = {name: format_ for name, format_ in formats.items() if wanted in ("auto", format_)}
    if not held:
        sought = "of prompts that can be read" if wanted == "auto" else f"of format {wanted}"
        raise UsageError(
            f"{option} {text}: no file {sought}, by its name ({', '.join(FORMATS)}); name its files with '{text}:PATTERN' and "
            "--prompt-format, or give a local directory of prompts"
        )
    first = next(iter(held))
    if len(counts := Counter(held.values())) > 1:
        shown = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
        raise UsageError(
            f"{option} {text}: the data set has files of several formats ({shown}); give --prompt-format, or name files, such as "
            f"'{text}:**/{_endings([first])[0]}'"
        )
    sets = sorted({_set_of(name) for name in held})
    if len(sets) > 1:
        shown = ", ".join(map(printable, sets[:_SHOWN])) + (", ..." if len(sets) > _SHOWN else "")
        raise UsageError(
            f"{option} {text}: the data set has several splits or parts ({shown}); name one, such as "
            f"'{text}:{printable(sets[0])}', or all with '{text}:**/{_endings([first])[0]}'"
        )
    return sets[0]


def _endings(names: list[str]) -> list[str]:
    """Patterns of the extensions of `names`, with those of a compression."""
    paths = map(Path, names)
    return sorted({f"*{''.join(path.suffixes[-2:] if compression(path) else path.suffixes[-1:])}" for path in paths})


def _fetched(pattern: str) -> list[str]:
    """What fetches the files of a glob, a directory or a file: fnmatch patterns, in which `*` also matches `/`."""
    first, *rest = pattern.rstrip("/").split("**/")  # which may match nothing
    ones = [first]
    for part in rest:
        ones = [f"{begin}{folders}{part}" for begin in ones for folders in ("", "*/")]
    return [f"{name}{end}" for name in (*ones, escape(pattern.rstrip("/"))) for end in ("", "/*")]


def _is_path(path: Path, match: "re.Match[str]") -> bool:
    """Whether `org/name` is more likely a file here: its folder is there, or it ends as files of prompts do."""
    plain = match["revision"] is None and match["pattern"] is None
    return path.name.lower().endswith(_ENDS) or (plain and path.parent.is_dir())


def _set_of(name: str) -> str:
    """The pattern of the shards that a file, named from the data set's root, belongs to; a file without shards is its own."""
    return f"{escape(shard)}-*" if (shard := _SHARD.sub("", name)) != name else name

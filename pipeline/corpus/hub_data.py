"""Prompts of a data set of the hub: `org/name[@revision][:PATTERN]` as files on this machine, read like any others.

Files are fetched as they are, at one commit; no loading script of a data set runs.
"""

import os
import re
from collections import Counter
from glob import escape
from pathlib import Path

from pipeline.config.corpus import SourceFormat
from pipeline.corpus.sources import COMPRESSIONS, FORMATS, compression, find_files, format_within
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.hub import commit_of, fetch_data, list_data

_NAME = re.compile(r"(?P<source>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<pattern>[^:]+))?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")
_SHOWN = 8
_ENDS = tuple(FORMATS) + tuple(COMPRESSIONS)


def prompt_files(text: str, option: str, wanted: SourceFormat) -> Path:
    """The value of `option` as a path: of what it names here, or of the fetched data set of the hub. Whatever is here, or is
    named as a file or a path, is no data set of the hub. Only files that match the pattern are fetched, or, without one, those of
    the one split of format `wanted`.

    UsageError for a data set that the hub does not have, without files to read, or with files of several formats or splits;
    UnderstudyError where the hub cannot be reached. All say what to do.
    """
    found = _NAME.fullmatch(text)
    if found is None or os.path.lexists(text) or _is_path(Path(found["source"]), found):
        return Path(text)
    source, pattern = found["source"], found["pattern"]
    commit = commit_of(source, found["revision"], "data set")
    if pattern is None:
        return fetch_data(source, commit, _endings(_one_set(list_data(source, commit), text, option, wanted)))
    directory = fetch_data(source, commit, _fetched(pattern))
    try:
        find_files(directory / pattern, wanted, f"{option} {text}")
    except UsageError as error:  # names what there is as paths of the cache
        raise UsageError(str(error).replace(f"{directory}/", f"{text.removesuffix(pattern)}")) from None
    return directory / pattern


def _one_set(names: list[str], text: str, option: str, wanted: SourceFormat) -> list[str]:
    """Those of the files of a data set that are read. UsageError for several formats or sets, and for none."""
    formats = {name: found for name in sorted(names) if (found := format_within(Path(name))) is not None}
    held = {name: found for name, found in formats.items() if wanted in ("auto", found)}
    if not held:
        sought = "of prompts that can be read" if wanted == "auto" else f"of format {wanted}"
        raise UsageError(
            f"{option} {text}: no file {sought}, by its name ({', '.join(FORMATS)}); name its files with '{text}:PATTERN' and "
            "--prompt-format, or give a local directory of prompts"
        )
    first = next(iter(held))
    if len(counts := Counter(held.values())) > 1:
        shown = ", ".join(f"{count:,} {one}" for one, count in counts.items())
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
    return list(held)


def _endings(names: list[str]) -> list[str]:
    """Patterns of the extensions of `names`, with those of a compression."""
    paths = map(Path, names)
    return sorted({f"*{''.join(path.suffixes[-2:] if compression(path) else path.suffixes[-1:])}" for path in paths})


def _fetched(pattern: str) -> list[str]:
    """What fetches the files of a glob, a directory or a file: fnmatch patterns, in which `*` also matches `/`."""
    first, *rest = pattern.rstrip("/").split("**/")  # which may match nothing
    ones = [first]
    for part in rest:
        ones = [f"{one}{folders}{part}" for one in ones for folders in ("", "*/")]
    return [f"{one}{end}" for one in (*ones, escape(pattern.rstrip("/"))) for end in ("", "/*")]


def _is_path(path: Path, found: "re.Match[str]") -> bool:
    """Whether `org/name` is more likely a file here: its folder is there, or it ends as files of prompts do."""
    plain = found["revision"] is None and found["pattern"] is None
    return path.name.lower().endswith(_ENDS) or (plain and path.parent.is_dir())


def _set_of(name: str) -> str:
    """The pattern of the shards that a file, named from the data set's root, belongs to."""
    return f"{shard}-*" if (shard := _SHARD.sub("", name)) != name else name

"""Prompts of a data set of the hub: `org/name[@revision][:PATTERN]` as files on this machine, read like any others.

Files are fetched as they are, at one commit; no loading script of a data set runs.
"""

import os
import re
from pathlib import Path

from pipeline.corpus.sources import COMPRESSIONS, FORMATS, find_files
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable
from pipeline.models.hub import commit_of, fetch_data

_NAME = re.compile(r"(?P<source>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<pattern>[^:]+))?")
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")
_SHOWN = 8
_ENDS = tuple(FORMATS) + tuple(COMPRESSIONS)


def prompt_files(text: str, option: str) -> Path:
    """The value of `option` as a path: of what it names here, or of the fetched data set of the hub. Whatever is here, or is
    named as a file or a path, is no data set of the hub.

    UsageError for a data set that the hub does not have, or with files of several splits; UnderstudyError where the hub cannot be
    reached. Both say what to do.
    """
    found = _NAME.fullmatch(text)
    if found is None or os.path.lexists(text) or _is_path(Path(found["source"]), found):
        return Path(text)
    source, pattern = found["source"], found["pattern"]
    directory = fetch_data(source, commit_of(source, found["revision"], "data set"))
    if pattern is not None:
        return directory / pattern
    files = find_files(directory, "auto", f"{option} {text}")
    sets = sorted({_set_of(files.name(file)) for file in files.files})
    if len(sets) > 1:
        shown = ", ".join(map(printable, sets[:_SHOWN])) + (", ..." if len(sets) > _SHOWN else "")
        raise UsageError(
            f"{option} {text}: the data set has several splits or parts ({shown}); name one, such as "
            f"'{text}:{printable(sets[0])}', or all with '{text}:**/*{files.files[0].suffix}'"
        )
    return directory


def _is_path(path: Path, found: "re.Match[str]") -> bool:
    """Whether `org/name` is more likely a file here: its folder is there, or it ends as files of prompts do."""
    plain = found["revision"] is None and found["pattern"] is None
    return path.name.lower().endswith(_ENDS) or (plain and path.parent.is_dir())


def _set_of(name: str) -> str:
    """The pattern of the shards that a file, named from the data set's root, belongs to."""
    return f"{shard}-*" if (shard := _SHARD.sub("", name)) != name else name

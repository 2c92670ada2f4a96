"""The name that `init` gives a pair. No two targets get one name: it decides which champion a draft is compared with. Pure."""

import hashlib
import os
import re
from pathlib import Path

_LONGEST = 60  # characters of the word that people read
_OTHER = re.compile(r"[^A-Za-z0-9._-]")


def pair_name(known_by: str) -> str:
    """A name of letters, digits and `._-`. `known_by`: a directory, a model of the hub, or the name under which servers serve it.

    The last word of a path is `target` or `model` for many pairs, so a hash of the path stands behind it; `org/name` is
    `org__name`; what servers call a model stays as it is.
    """
    if not known_by.startswith(("/", ".", "~")):
        whole = known_by.replace("/", "__")
        plain = _plain(whole)
        return plain if plain == whole and "__" not in known_by else f"{plain}-{_hash(known_by)}"
    path = os.path.abspath(os.path.expanduser(known_by))
    return f"{_plain(Path(path).name)}-{_hash(path)}"


def _plain(text: str) -> str:
    return _OTHER.sub("", text)[:_LONGEST].strip(".") or "pair"


def _hash(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:6]

"""The text of the reference pair: the running Python's standard library, in two domains. Imports the standard library only.

The domain "modules" is the library's own modules. The domain "tests" is its test suite; the target is fine-tuned on it.
Some distributions ship Python without its tests: there the interpreter's built-in help topics are the domain "tests".
"""

import ast
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.store.own_files import reads_own_files

_TEST_DIRECTORIES = frozenset({"test", "tests", "idle_test"})
_UNREAD_DIRECTORIES = frozenset({"site-packages", "dist-packages", "__pycache__", "ensurepip"})
_SKIPPED_DIRECTORIES = _UNREAD_DIRECTORIES | {"pydoc_data"}
_LARGEST_FILE = 200_000  # larger ones are mostly generated tables
_LEAST_TESTS = 1_000_000  # characters; help topics are read where the test suite is smaller
_HELD_OUT_SHARE = 0.3


@dataclass(frozen=True)
class Document:
    """One file, or one help topic."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether prompts are cut from this document and no model is trained on it. Depends on the name alone."""
        return _fraction(f"held out: {self.name}") < _HELD_OUT_SHARE


@dataclass(frozen=True)
class ReferenceText:
    """The two domains. The target is trained on "modules", then fine-tuned on "tests"."""

    modules: tuple[Document, ...]
    tests: tuple[Document, ...]


def read_text(library: Path, megabytes: float) -> ReferenceText:
    """Both domains of the Python library at `library`, at most `megabytes` (10^6 characters) each.

    The choice depends on file names alone, so it is the same in every run of one Python.
    """
    names = _names(library)
    modules = _up_to(_source_files(library, names[False]), megabytes)
    tests = _up_to(_source_files(library, names[True]), megabytes)
    if sum(len(document.text) for document in tests) < min(_LEAST_TESTS, megabytes * 1e6):
        tests = _up_to(_help_topics(library), megabytes)
    return ReferenceText(tuple(modules), tuple(tests))


@reads_own_files("the standard library of this interpreter")
def text_digest(library: Path, megabytes: float) -> str:
    """Digest of exactly the text that `read_text` returns."""
    digest = hashlib.sha256()
    text = read_text(library, megabytes)
    for document in (*text.modules, *text.tests):
        digest.update(f"{document.name}\0{document.text}\0".encode())
    return digest.hexdigest()[:20]


def library_stamp(library: Path) -> str:
    """Hash of names, inodes, sizes and times of the library's source files. It changes whenever `text_digest` might."""
    digest = hashlib.sha256()
    for directory, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - _UNREAD_DIRECTORIES)
        for name in sorted(names):
            if name.endswith(".py"):
                stat = os.stat(os.path.join(directory, name))
                stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
                digest.update(f"{directory}/{name}\0{stamp}\0".encode())
    return digest.hexdigest()[:20]


def _names(library: Path) -> dict[bool, list[str]]:
    """The source files of the modules and of the tests (True), in the order in which they are read."""
    by_domain: dict[bool, list[str]] = {False: [], True: []}
    for directory, folders, names in os.walk(library):
        folders[:] = set(folders) - _SKIPPED_DIRECTORIES
        parts = Path(directory).relative_to(library).parts
        within = "".join(f"{part}/" for part in parts)
        by_domain[not _TEST_DIRECTORIES.isdisjoint(parts)] += [within + name for name in names if name.endswith(".py")]
    return {tests: sorted(names, key=_fraction) for tests, names in by_domain.items()}


@reads_own_files("the standard library of this interpreter")
def _source_files(library: Path, names: list[str]) -> Iterator[Document]:
    for name in names:
        path = library / name
        if 500 < path.stat().st_size <= _LARGEST_FILE:
            try:
                yield Document(name, path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue  # some files test other encodings


@reads_own_files("the standard library of this interpreter")
def _help_topics(library: Path) -> Iterator[Document]:
    path = library / "pydoc_data" / "topics.py"
    if not path.exists():
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            for name, text in ast.literal_eval(node).items():
                yield Document(f"topic:{name}", text)


def _up_to(documents: Iterator[Document], megabytes: float) -> list[Document]:
    chosen, size = [], 0
    for document in documents:
        if size > megabytes * 1e6:
            break
        chosen.append(document)
        size += len(document.text)
    return chosen


def _fraction(name: str) -> float:
    """A number in [0, 1), the hash of `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64

"""The text of the reference pair, from a made-up Python library."""

from pathlib import Path

import pytest

from pipeline.reference.text import Document, read_text, text_digest


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Modules, tests, and files that must not be read."""
    files = {
        **{f"module{n}.py": f"# module {n}\n" + "x = 1\n" * 200 for n in range(30)},
        "package/inner.py": "y = 2\n" * 200,
        **{f"test/test_{n}.py": f"# test {n}\n" + "assert 1\n" * 200 for n in range(20)},
        "json/tests/test_json.py": "assert 2\n" * 200,
        "tiny.py": "z = 3\n",
        "table.py": "0,\n" * 100_000,
        "site-packages/other.py": "w = 4\n" * 200,
        "package/__pycache__/odd.py": "w = 5\n" * 200,
        "notes.txt": "text\n" * 200,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "latin.py").write_bytes(b"# \xe9\xe8\n" * 200)
    return tmp_path


def _names(documents: tuple[Document, ...]) -> set[str]:
    return {document.name for document in documents}


def _with_topics(library: Path) -> None:
    """Help topics beside the library's files, as Python ships them."""
    (library / "pydoc_data").mkdir()
    topics = {f"topic{n}": f"Topic {n}.\n" * 50 for n in range(25)}
    (library / "pydoc_data" / "topics.py").write_text(f"# generated\ntopics = {topics!r}\n")


def test_the_domains_are_modules_and_tests(library: Path) -> None:
    """Generated tables, tiny files, other encodings, caches and installed packages are left out."""
    text = read_text(library, 0.03)
    everything = read_text(library, 0.0375)

    assert {f"test/test_{n}.py" for n in range(20)} | {"json/tests/test_json.py"} == _names(everything.tests)
    assert {f"module{n}.py" for n in range(30)} | {"package/inner.py"} >= _names(everything.modules)
    assert not _names(text.modules) & _names(text.tests)


def test_the_limit_is_kept_but_for_the_last_document(library: Path) -> None:
    """Reading stops after the document that exceeds it. A smaller limit gives the first documents of a larger one."""
    small, large = read_text(library, 0.005), read_text(library, 0.02)

    assert 5000 < sum(len(document.text) for document in small.modules) < 5000 + 1300
    assert small.modules == large.modules[: len(small.modules)]


def test_held_out_documents_are_stable_and_disjoint(library: Path) -> None:
    """About three in ten, chosen by name alone, whatever the documents contain."""
    names = [f"module{n}.py" for n in range(2000)]
    held_out = {name for name in names if Document(name, "").held_out}
    read = read_text(library, 0.02).modules

    assert 0.3 == pytest.approx(len(held_out) / len(names), abs=0.05)
    assert held_out == {name for name in names if Document(name, "other text").held_out}
    assert {True, False} == {document.held_out for document in read}
    assert all(document.held_out == (document.name in held_out) for document in read if "inner" not in document.name)


def test_a_library_without_tests_has_help_topics(library: Path) -> None:
    """Where a distribution ships no test suite, the domain "tests" is the interpreter's help."""
    for path in [*library.glob("test/*.py"), library / "json/tests/test_json.py"]:
        path.unlink()
    _with_topics(library)
    tests = read_text(library, 0.01).tests

    assert tuple(Document(f"topic:topic{n}", f"Topic {n}.\n" * 50) for n in range(len(tests))) == tests
    assert len(tests) > 10


def test_tests_are_preferred_to_help_topics(library: Path) -> None:
    """Topics are used only where the test suite is too small."""
    _with_topics(library)

    assert "topic" not in "".join(_names(read_text(library, 0.01).tests))
    assert "topic" in "".join(_names(read_text(library, 0.5).tests))


def test_without_tests_and_topics_the_domain_is_empty(tmp_path: Path) -> None:
    """The recipe reports the error; reading does not fail."""
    assert ((), ()) == (read_text(tmp_path, 1).modules, read_text(tmp_path, 1).tests)


def test_the_digest_is_that_of_what_is_read(library: Path) -> None:
    """It changes with a document's text and name, and not with a file that is not read."""
    before = text_digest(library, 0.03)
    (library / "notes.txt").write_text("other")
    assert before == text_digest(library, 0.03)
    read = read_text(library, 0.03).modules[0]
    (library / read.name).write_text(read.text.replace("1", "2", 1))
    changed = text_digest(library, 0.03)

    assert before != changed
    (library / read.name).write_text(read.text)
    assert before == text_digest(library, 0.03)
    (library / read.name).rename(library / f"renamed_{Path(read.name).name}")
    assert before != text_digest(library, 0.03)

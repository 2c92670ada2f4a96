"""C code is built once and kept in the user's cache, if the cache is there and can be trusted."""

import ctypes
from pathlib import Path

import pytest

from pipeline.native import build, compiler

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C compiler here")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one line, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "native.c"
    path.write_text("int ready(void) { return 1; }")
    return path


def _load(source: Path, *flags: str) -> int:
    """What the built library answers."""
    library = build.load(source, flags)
    assert isinstance(library, ctypes.CDLL)
    return int(library.ready())


def _kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "understudy").iterdir())


def test_a_library_is_built_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And taken from the cache by the next process, which does not run the compiler."""
    assert 1 == _load(source)
    made = [path.stat().st_mtime_ns for path in _kept(tmp_path)]
    monkeypatch.setattr(build.subprocess, "run", lambda *args, **kwargs: pytest.fail("built again"))

    assert 1 == _load(source)
    assert made == [path.stat().st_mtime_ns for path in _kept(tmp_path)]
    assert 1 == len(made)


def test_a_library_is_of_its_flags_source_processor_and_compiler(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other of these is built anew, beside the first: a home may be shared between machines."""
    flags, made = ["-O0"], []
    for change in ("nothing", "flags", "source", "header", "processor", "compiler"):
        if change == "source":
            source.write_text("int ready(void) { return 0; }")
        if change == "header":
            monkeypatch.setattr(build, "_HEADER", tmp_path / "simd.h")
            (tmp_path / "simd.h").write_text("")
        if change == "processor":
            monkeypatch.setattr(build, "processor", lambda: "another")
        if change == "compiler":
            monkeypatch.setattr(build, "version", lambda path: "another")
        flags += ["-O1"] * (change == "flags")
        assert (change in ("nothing", "flags")) == _load(source, *flags)
        made.append(len(_kept(tmp_path)))

    assert [1, 2, 3, 4, 5, 6] == made


def test_a_compiler_is_known_by_what_it_says(tmp_path: Path) -> None:
    """A package update leaves another compiler under the same path."""
    path = tmp_path / "cc"
    for number in (1, 2):
        path.write_text(f"#!/bin/sh\necho cc {number}.0 $1")
        path.chmod(0o755)
        compiler.version.cache_clear()
        assert f"cc {number}.0 --version\n" == compiler.version(str(path))
    compiler.version.cache_clear()


def test_a_cache_that_cannot_be_written_is_no_obstacle(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is then built for this process alone."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert 1 == _load(source)


@pytest.mark.parametrize("state", ["damaged", "writable by others", "no home"])
def test_a_cache_that_cannot_be_trusted_is_not_used(
    state: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged library is built anew, one that others could have put there is left alone, and none is needed."""
    _load(source)
    (made,) = _kept(tmp_path)
    whole = made.read_bytes()
    made.unlink()  # a loaded library must not be written over
    made.write_bytes(whole[: len(whole) // 2])  # loading it would end the process with SIGBUS
    if state == "writable by others":
        made.parent.chmod(0o777)
    if state == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", _no_home)

    assert 1 == _load(source)
    assert (state == "damaged") == (made.read_bytes() == whole)
    assert [made] == _kept(tmp_path)


def test_a_library_that_was_altered_is_built_anew(source: Path, tmp_path: Path) -> None:
    """Also where its length is right: its digest decides."""
    _load(source)
    (made,) = _kept(tmp_path)
    whole = made.read_bytes()
    made.unlink()  # a loaded library must not be written over
    made.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    assert 1 == _load(source)
    assert made.read_bytes() == whole


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_library_without_our_names_is_not_used(source: Path) -> None:
    """A library that lacks the layout of a struct is another one; PyTorch is used instead."""
    assert build.load(source, (), {"arguments": ctypes.Structure}) is None

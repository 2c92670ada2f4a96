"""Files of prompts as people have them: formats, compressions, directories, globs, and the digest of all of them."""

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config.corpus import PromptSource
from pipeline.config.loading import load_config
from pipeline.corpus import text_files
from pipeline.corpus.readers import SourceReader
from pipeline.corpus.rows import BadRow
from pipeline.errors import UsageError
from pipeline.running import inputs as inputs_module
from pipeline.running.inputs import resolve_inputs
from pipeline.store.artifacts import Store

TEXTS = ["one", 'two, "quoted" ü🎭', "three"]
ROWS = [{"prompt": text, "domain": "d"} for text in TEXTS]
_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def _table(delimiter: str) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([["prompt", "domain"], *([row["prompt"], "d"] for row in ROWS)])
    return out.getvalue()


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def _reader(path: Path, **settings: Any) -> SourceReader:
    return SourceReader(0, PromptSource(path=str(path), **settings), path)


def _read(path: Path, **settings: Any) -> list[Any]:
    return [row.value for row in _reader(path, **settings)]


@pytest.mark.parametrize(
    ("name", "text", "layout"),
    [
        ("p.json", json.dumps(ROWS), "a JSON array, `prompt`"),
        ("p.json", "\ufeff \n" + json.dumps(ROWS, indent=2) + "\n", "a JSON array, `prompt`"),
        ("p.json", LINES, "JSON, `prompt`"),
        ("p.ndjson", LINES, "JSON lines, `prompt`"),
        ("p.CSV", _table(","), "CSV, `prompt`"),
        ("p.csv", "\ufeff" + _table(";"), "CSV, `prompt`"),
        ("p.tsv", _table("\t"), "TSV, `prompt`"),
        ("p.csv", _table(",").replace(",d", ", d").replace(",domain", ", domain"), "CSV, `prompt`"),
        ("p.txt", "\r\n\n".join(TEXTS), "text, a prompt a line"),
        ("p.json", json.dumps(TEXTS), "a JSON array, a text each"),
    ],
)
def test_text_formats_give_the_same_rows(tmp_path: Path, name: str, text: str, layout: str) -> None:
    """Every format, recognised by its name, yields the same prompts, counts them, and says what it was read as."""
    (tmp_path / name).write_bytes(text.encode())
    reader = _reader(tmp_path / name)

    assert TEXTS == [row.value["prompt"] for row in reader]
    assert len(TEXTS) <= reader.total()
    assert layout == reader.layout


@pytest.mark.parametrize(
    ("extension", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", _zstd)]
)
def test_compressed_files_are_read(tmp_path: Path, extension: str, compress: Callable[[bytes], bytes]) -> None:
    """Also of several parts, as `cat a.gz b.gz` makes them; a file that is cut off is an error with its name."""
    path = tmp_path / f"p.jsonl{extension}"
    middle = LINES.index("\n") + 1
    path.write_bytes(compress(LINES[:middle].encode()) + compress(LINES[middle:].encode()))
    assert ROWS == _read(path)
    assert 3 == _reader(path).total()

    path.write_bytes(compress(LINES.encode() * 100)[:-12])
    with pytest.raises(UsageError, match=rf"p\.jsonl\{extension}: not readable as"):
        _read(path)


def test_rows_are_numbered_by_the_lines_on_which_they_begin(tmp_path: Path) -> None:
    """A cell may have several lines; a row with other cells than the header costs only itself, and an empty cell is null."""
    (tmp_path / "p.csv").write_text('prompt,domain\n"a\nb",x\n\nc\nd,"e"f\ng,\n')
    reader = _reader(tmp_path / "p.csv")
    found = {row.number: row.value for row in reader}

    assert "line" == reader.unit
    assert [2, 5, 6, 7] == list(found)
    assert {"prompt": "a\nb", "domain": "x"} == found[2]
    assert {"prompt": "g", "domain": None} == found[7]
    assert "broken CSV: 1 cells, and the header has 2" == str(found[5])
    assert "broken CSV" == found[6].kind


def test_text_that_is_not_utf8_costs_one_row(tmp_path: Path) -> None:
    """Of a table, an array and a text."""
    (tmp_path / "p.csv").write_bytes(b"prompt\ngood\n\xff\n")
    (tmp_path / "p.json").write_bytes(b'[{"prompt": "good"}, {"prompt": "\xff"}]')
    (tmp_path / "p.txt").write_bytes(b"good\n\xff\n")
    from pipeline.corpus.rows import parse_row

    for name in ("p.csv", "p.json", "p.txt"):
        good, bad = _read(tmp_path / name)
        assert {"prompt": "good"} == good
        with pytest.raises(BadRow, match=r"invalid unicode: .*not UTF-8"):
            parse_row(bad, PromptSource(path="p"))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.json", b'[{"prompt": "a"}, {"prompt": ', "row 2: not a JSON array"),
        ("p.json", b'[{"prompt": "a"} {"prompt": "b"}]', "row 1: .*: '{' where a comma belongs"),
        ("p.json", b'[{"prompt": "a"}', "row 1: .*: the file ends within the array"),
        ("p.json", b'[{"prompt": "a"}] x', "row 1: .*: text after the end of the array"),
        ("p.json", b"[" * 100_000, "row 1: .*brackets too deep"),
        ("p.json", b'{\n "data": [\n]}', r"line 1: broken JSON: .*; write each row on one line$"),
        ("p.json", b'{\n "data": [{"prompt": "a"}\n]}', r"line 1: broken JSON: .* with jq -c '\.data\[\]' "),
        ("p.csv", b'prompt\na\n"b\nc\n', "line 3: a quote that begins a cell here is never closed"),
        (
            "p.csv",
            b"prompt,prompt\na,b\n",
            "line 1, the header: the column 'prompt' is there twice; rename one of them",
        ),
        ("p.csv", b"prompt" + b",x" * 300_000 + b"\na\n", "line 1, the header: the column 'x' is there twice"),
        ("p.csv", "prompt\nä\n".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        ("p.jsonl", LINES.encode("utf-16-le"), "UTF-16 text; convert it to UTF-8"),
        ("p.txt", LINES.encode("utf-16-be"), "UTF-16 text; convert it to UTF-8"),
        ("p.jsonl.gz", b"no gzip", "not readable as gzip"),
        ("p.jsonl.zst", b"no zstd", "not readable as zstd"),
        ("p.jsonl", gzip.compress(b"{}", mtime=0), r"gzip data, by its first bytes; give its name the extension \.gz"),
        ("p.csv", bz2.compress(b"prompt"), r"bzip2 data, .* extension \.bz2"),
        ("p.txt.gz", lzma.compress(b"a"), r"xz data, .* extension \.xz"),
        ("p.json", _zstd(b"[]"), r"zstd data, .* extension \.zst"),
        ("p.parquet", gzip.compress(b"PAR1", mtime=0), r"gzip data, .* extension \.gz"),
        ("p.jsonl", b"PAR1\x15", r"Parquet data, .* extension \.parquet"),
        ("p.jsonl", b'PK\x03\x04\n{"prompt": "a"}\n', "a zip archive or a spreadsheet, by its first bytes; unpack it"),
        ("p.txt", b"SQLite format 3\0", "an SQLite database, .* export the table"),
        ("p.parquet", b"ARROW1\0\0", "an Arrow file, .* write the table as Parquet"),
        ("p.parquet", _POINTER, "a Git LFS pointer in place of the file, .* git lfs pull"),
        ("p.jsonl.gz", _POINTER, "a Git LFS pointer in place of the file, .* git lfs pull"),
        ("p.jsonl", b"\n<!DOCTYPE html>\n<html>", "a web page in place of the file, .* download the file itself"),
        ("p.jsonl", json.dumps(ROWS).encode(), "line 1: a list of objects that are no messages; .* set `format: json`"),
        ("p.jsonl", json.dumps(ROWS, indent=1).encode(), r"line 1: broken JSON: .* with jq -c '\.\[\]' .*p\.jsonl"),
        ("p.jsonl", json.dumps(ROWS[0], indent=1).encode(), r"line 1: broken JSON: .* with jq -c \. .*p\.jsonl"),
        ("p.xlsx", b"", r"unknown file extension; known are \.jsonl.*; save the sheet as CSV"),
        ("p.parquet.gz", b"", "unknown file extension.*; Parquet files are compressed within, so name it \\.parquet"),
        ("p.parquet.gzip", b"", "unknown file extension.*; Parquet files are compressed within, so name it \\.parquet"),
        ("p.tar.gz", b"", "unknown file extension.*; unpack it and name the directory"),
        ("p.md", b"", "unknown file extension.*; rename the file, or set `format` of the source, such as `text`"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    """With the name of the file, the row, and what to do."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{name}: {complaint}") as caught:
        _read(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_memory_is_that_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 MB in one line of JSON, or in one CSV file, a few are in memory."""
    monkeypatch.setattr(text_files, "_CHUNK", 1 << 16)
    row = {"prompt": "x" * 20_000}
    with (tmp_path / "p.json").open("w") as array, (tmp_path / "p.csv").open("w") as table:
        array.write("[" + ",".join([json.dumps(row)] * 600) + "]")
        table.write("prompt\n" + (row["prompt"] + "\n") * 600)
    for name in ("p.json", "p.csv"):
        tracemalloc.start()
        rows = sum(1 for _ in _reader(tmp_path / name))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert 600 == rows
        assert peak < 5e6


def test_an_element_over_several_chunks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a chunk ends: within a character, an escape, a number or white space."""
    rows = [{"prompt": 'ü\\"🎭' * 3, "n": [1.5e3, -12]}, {"prompt": "b", "n": 123456}]
    (tmp_path / "p.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    for size in (1, 2, 3, 5, 7, 64):
        monkeypatch.setattr(text_files, "_CHUNK", size)
        assert rows == _read(tmp_path / "p.json"), size


def _shards(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, text in enumerate(TEXTS):
        with gzip.open(folder / f"part-{number}.jsonl.gz", "wt") as stream:
            stream.write(json.dumps({"prompt": text}) + "\n")
    (folder / "README.md").write_text("about")
    (folder / "part-.jsonl.gz").write_bytes(gzip.compress(b""))  # the first, and empty
    (folder / ".part-9.jsonl").write_text("hidden")
    return folder


@pytest.mark.parametrize("pattern", ["", "*.jsonl.gz", "part-[0-9]*"])
def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path, pattern: str) -> None:
    """Of a directory, or of a glob; rows are named by their shard."""
    shards = _shards(tmp_path / "shards")
    reader = _reader(shards / pattern)

    assert TEXTS == [row.value["prompt"] for row in reader]
    assert ["part-0.jsonl.gz", "part-1.jsonl.gz", "part-2.jsonl.gz"] == [row.file for row in reader]
    assert f"{3 if pattern.startswith('part') else 4} files of JSON lines (gzip), `prompt`" == reader.layout


def test_a_directory_of_several_formats_is_not_guessed(tmp_path: Path) -> None:
    """One of them may be something else; `format` or a glob chooses."""
    shards = _shards(tmp_path / "shards")
    (shards / "notes.txt").write_text("not a prompt\n")
    with pytest.raises(UsageError, match=r"holds files of several formats \(1 text, 4 jsonl\); set `format`"):
        _reader(shards)

    assert 3 == len(_read(shards, format="jsonl"))
    assert [{"prompt": "not a prompt"}] == _read(shards / "*.txt")
    with pytest.raises(UsageError, match="format is csv, and the directory holds 1 text, 4 jsonl"):
        _reader(shards, format="csv")
    with pytest.raises(UsageError, match=r"none-\*: no file matches"):
        _reader(shards / "none-*")
    with pytest.raises(UsageError, match=r"no such file or directory; did you mean .*notes\.txt\?"):
        _reader(shards / "note.txt")


def test_links_are_followed_or_named(tmp_path: Path) -> None:
    """A linked folder is read, once where it is linked twice or lies within itself; a link to nowhere stops, since its prompts
    would be missing without a word."""
    real, source = tmp_path / "real", tmp_path / "source"
    real.mkdir()
    source.mkdir()
    (real / "p.jsonl").write_text(LINES)
    (real / "again").symlink_to(real)
    for name in ("a", "b"):
        (source / name).symlink_to(real)
    assert ROWS == _read(source)

    (source / "lost.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    for path in (source, source / "*.jsonl"):
        with pytest.raises(
            UsageError, match=r"lost\.jsonl is a link to a file that is not there; fix or delete the link"
        ):
            _read(path)
    with pytest.raises(UsageError, match=r"lost\.jsonl: a link to a file that is not there$"):
        _read(source / "lost.jsonl")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left out without a word."""
    (tmp_path / "p.jsonl").write_text(LINES)
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageError, match=r"closed: Permission denied"):
        _read(tmp_path)


def test_brackets_of_a_folder_that_is_there_match_themselves(tmp_path: Path) -> None:
    """A glob below such a folder finds its files."""
    folder = tmp_path / "my data [v1]"
    folder.mkdir()
    (folder / "shard 0.jsonl").write_text(LINES)
    assert ROWS == _read(folder / "*.jsonl") == _read(folder / "**" / "shard ?.json[l]")


def test_columns_without_a_name_may_be_several(tmp_path: Path) -> None:
    """Spreadsheets write them for empty columns."""
    (tmp_path / "p.csv").write_text("prompt,,,\na,,,\nb,,,\n")
    assert ["a", "b"] == [row["prompt"] for row in _read(tmp_path / "p.csv")]


def test_a_directory_of_unknown_files_says_what_it_holds(tmp_path: Path) -> None:
    """And how to have them read, by a key or by an option, whichever named the directory; the advice works."""
    notes = tmp_path / "notes"
    notes.mkdir()
    with pytest.raises(UsageError, match="save_to_disk; it is empty"):
        _reader(notes)
    for name in ("a.md", "b.md"):
        (notes / name).write_text("one\n")
    found = r"\(found: 2 \.md\); {}, and name the files with a glob such as .*/notes/\*\*/\*\.md"
    with pytest.raises(UsageError, match=found.format("set `format` of the source")):
        _reader(notes)
    with pytest.raises(UsageError, match=found.format("give --prompt-format")):
        SourceReader(0, PromptSource(path=str(notes)), notes, option="--prompts")
    assert 2 == len(_read(notes / "**/*.md", format="text"))

    (notes / "a.zip").write_bytes(b"")
    for name in ("a.md", "b.md"):
        (notes / name).unlink()
    with pytest.raises(UsageError, match=r"\(found: 1 \.zip\); unpack it and name the directory"):
        _reader(notes)


def _digest(tmp_path: Path, path: Path) -> str:
    pair = "pair:\n  target: {source: reference}\n  draft: {source: reference}\n"
    (tmp_path / "my.yaml").write_text(f"name: a\n{pair}corpus:\n  sources: [{{path: {path}}}]\n")
    return str(resolve_inputs(load_config(tmp_path / "my.yaml"), Store(tmp_path / "store"))["prompts_0"].digest)


@pytest.mark.parametrize("pattern", ["", "*.gz"])
def test_a_shard_that_is_added_changes_the_digest(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that is renamed or written anew. A copy elsewhere and files that are not read change nothing."""
    monkeypatch.setattr(inputs_module, "text_digest", lambda library, megabytes: "text")  # of the reference pair
    monkeypatch.setattr(inputs_module, "library_stamp", lambda library: "stamp")
    shards, copy = _shards(tmp_path / "shards"), _shards(tmp_path / "elsewhere" / "shards")
    for folder in (shards, copy):
        for file in folder.glob("*.gz"):
            file.write_bytes(gzip.compress(file.name.encode(), mtime=0))
    first = _digest(tmp_path, shards / pattern)
    assert first == _digest(tmp_path, copy / pattern)
    (shards / "README.md").write_text("changed")
    assert first == _digest(tmp_path, shards / pattern)

    found = {first}
    for change in (
        lambda: (shards / "part-3.jsonl.gz").write_bytes(gzip.compress(b"{}")),
        lambda: (shards / "part-3.jsonl.gz").rename(shards / "part-4.jsonl.gz"),
        lambda: (shards / "part-4.jsonl.gz").write_bytes(gzip.compress(b"{ }")),
    ):
        change()
        found.add(_digest(tmp_path, shards / pattern))
    assert 4 == len(found)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_excels_line_of_the_separator_is_read(tmp_path: Path, end: str) -> None:
    """It stands before the header, and rows keep the numbers of their lines."""
    path = tmp_path / "p.csv"
    path.write_bytes(end.join(["sep=;", "prompt;topic", "a, b;x", "c;y", ""]).encode())
    assert [(3, "a, b"), (4, "c")] == [(row.number, row.value["prompt"]) for row in _reader(path)]


def test_zeros_at_the_end_of_a_file_are_one_bad_row(tmp_path: Path) -> None:
    """As of a machine that stopped while it wrote."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(LINES.encode() + bytes(4096))
    *rows, last = _read(path)
    assert (ROWS, True) == (rows, isinstance(last, BadRow))

"""Files of prompts whose content is not what their name states, told by their first bytes: compressed files without the
extension, archives, pages that were saved in place of a file, pointers of Git LFS. Reads no rows."""

from pipeline.corpus.sources import COMPRESSIONS
from pipeline.errors import UsageError
from pipeline.escaping.terminal import printable

LENGTH = 64  # bytes of the start, by which a file is recognised
_PACKED = {"gzip": b"\x1f\x8b\x08", "bzip2": b"BZh", "xz": b"\xfd7zXZ\x00", "zstd": b"\x28\xb5\x2f\xfd"}
_BLOCK_OF_BZIP2 = b"1AY&SY"  # after the level; a prompt may begin with BZh
_PARQUET = b"PAR1"
_OTHERS = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unpack it and name the directory, or save the sheet as CSV"),
    (b"SQLite format 3\0", "an SQLite database", "export the table as CSV or JSON lines"),
    (b"ARROW1\0", "an Arrow file", "write the table as Parquet"),
    (
        b"version https://git-lfs.github.com/",
        "a Git LFS pointer in place of the file",
        "get the file with git lfs pull",
    ),
    (b"<!doctype html", "a web page in place of the file", "download the file itself"),
)


def check_start(path: object, start: bytes, expected: str | None) -> None:
    """UsageError where a file that begins with `start` is not what its name states: `expected` is a compression, "Parquet", or
    None for text."""
    if packing := _packed(start):
        extension = next(extension for extension, name in COMPRESSIONS.items() if name == packing)
        mistake = packing != expected and (f"{packing} data", f"give its name the extension {extension}")
    elif start.startswith(_PARQUET):
        mistake = expected != "Parquet" and ("Parquet data", "give its name the extension .parquet")
    else:
        text = start.lstrip().lower()
        mistake = next((other[1:] for other in _OTHERS if text.startswith(other[0].lower())), False)
    if mistake:
        raise UsageError(f"{printable(str(path))}: {mistake[0]}, by its first bytes; {mistake[1]}")


def _packed(start: bytes) -> str | None:
    name = next((name for name, magic in _PACKED.items() if start.startswith(magic)), None)
    return None if name == "bzip2" and not start[4:].startswith(_BLOCK_OF_BZIP2) else name

"""Headers of safetensors files, which strangers write: names, types and shapes of the tensors. Loads no tensor. Torch-free."""

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pipeline.errors import UnderstudyError
from pipeline.store.json_text import parse_json, regular_file
from pipeline.store.own_files import reads_own_files
from pipeline.store.parsing import Text, parse

FLOATS = ("F64", "F32", "F16", "BF16")
_MOST_HEADER = 100_000_000  # bytes, as the safetensors library allows
_CHUNK = 1 << 20  # bytes
Extent = Annotated[int, Field(strict=True, ge=0, lt=2**53)]


class TensorEntry(BaseModel):
    """One tensor: its element type, its shape, and the bytes that it takes behind the header."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Text
    shape: list[Extent] = Field(max_length=16)
    data_offsets: tuple[Extent, Extent]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


_HEADER = TypeAdapter(dict[Text, TensorEntry])


def read_header(path: Path) -> Mapping[str, TensorEntry]:
    """The tensors of a file by name (8 bytes with the length of the header, the header as JSON, the data).

    UnderstudyError for a damaged or truncated file.
    """
    try:
        with regular_file(path) as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MOST_HEADER:
                raise ValueError(f"its header would have {length:,} bytes")
            raw: Any = parse_json(stream.read(length), foreign=True)
            if not isinstance(raw, dict):
                raise ValueError("its header is not an object")
            tensors = parse(_HEADER, {name: entry for name, entry in raw.items() if name != "__metadata__"})
            data = stream.seek(0, 2) - 8 - length
    except OSError as error:
        raise UnderstudyError(f"{path}: {error.strerror or error}") from None
    except (struct.error, ValueError) as error:
        raise UnderstudyError(f"{path}: damaged safetensors file ({error}); download the model again") from None
    if any(entry.bytes < 0 for entry in tensors.values()):
        raise UnderstudyError(
            f"{path}: damaged safetensors file (a tensor ends before it begins); download the model again"
        )
    end = max((entry.data_offsets[1] for entry in tensors.values()), default=0)
    if data != end:
        what = "truncated" if data < end else "longer than its header states"
        raise UnderstudyError(
            f"{path}: {what}: {data:,} bytes of tensors, and the header lists {end:,}; download the model again"
        )
    return tensors


@reads_own_files("a file whose header was read")
def tensor_bytes(path: Path, entry: TensorEntry) -> Iterator[bytes]:
    """The bytes of a tensor whose `entry` was read from the header of `path`, in chunks of 1 MiB and the rest."""
    with regular_file(path) as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        stream.seek(8 + length + entry.data_offsets[0])
        for begin in range(0, entry.bytes, _CHUNK):
            yield stream.read(min(_CHUNK, entry.bytes - begin))

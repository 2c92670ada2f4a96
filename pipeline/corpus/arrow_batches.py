"""Arrow files batch by batch, of which one is in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.store.own_files import reads_own_files


def batches(reader: Any) -> Iterator[Any]:
    """The record batches of an opened file."""
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


@reads_own_files("written by the same process")
def kept_batches(accepted: Path, kept: NDArray[np.bool_]) -> Iterator[tuple[Any, NDArray[np.intp]]]:
    """The kept rows of the row buffer's `accepted` file, batch by batch, with their numbers. `kept` is [rows]."""
    first = 0
    with pa.memory_map(str(accepted)) as source:
        for batch in batches(pa.ipc.open_file(source)):
            rows = first + np.flatnonzero(kept[first : first + batch.num_rows])
            if len(rows):
                yield batch.take(pa.array(rows - first)), rows
            first += batch.num_rows

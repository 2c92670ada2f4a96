"""How the row of each token was made in a draft that was given the target's vocabulary: `token_rows.npy` of the pair stage."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pipeline.drafts.shared_tokens import SharedTokens, Vocabularies
from pipeline.errors import UnderstudyError
from pipeline.store.own_files import reads_own_files

_FILE = "token_rows.npy"
Way = Literal["copied", "special", "mapped", "pieces", "mean", "padded"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True)
class TokenRows:
    """How rows were made, by column of the logits: the place in WAYS, and whether the draft's own tokenizer writes the token in
    no text."""

    way_V: NDArray[np.uint8]
    unwritten_V: NDArray[np.bool_]

    @classmethod
    def of(cls, width: int, shared: SharedTokens, vocabularies: Vocabularies) -> "TokenRows":
        """The ways before rows of `shared.others` are made, which have the mean row."""
        rows = cls(np.full(width, WAYS.index("mean"), np.uint8), np.zeros(width, np.bool_))
        rows.set(shared.copied, "copied")
        rows.set(shared.special, "special")
        rows.set(shared.padded, "padded")
        rows.unwritten_V[list(vocabularies.unwritten(shared.others))] = True
        return rows

    def set(self, places: Iterable[int], way: Way) -> None:
        self.way_V[list(places)] = WAYS.index(way)

    def counts(self) -> dict[Way, int]:
        return {way: int((self.way_V == number).sum()) for number, way in enumerate(WAYS)}


def write_token_rows(directory: Path, rows: TokenRows) -> None:
    np.save(directory / _FILE, np.stack([rows.way_V, rows.unwritten_V.astype(np.uint8)]), allow_pickle=False)


@reads_own_files("an array of an artifact: a stage compares its SHA-256 before it reads it")
def read_token_rows(directory: Path) -> TokenRows:
    """UnderstudyError for a file that is missing or damaged."""
    try:
        way_V, unwritten_V = np.load(directory / _FILE, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UnderstudyError(
            f"{directory / _FILE}: missing or damaged ({error}); delete {directory} and run again"
        ) from None
    return TokenRows(way_V, unwritten_V.astype(np.bool_))

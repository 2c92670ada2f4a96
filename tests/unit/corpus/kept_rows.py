"""Takes the accepted rows in the place of the row buffer."""

from collections.abc import Sequence

from pipeline.corpus.accepted_rows import AcceptedRow


class KeptRows(list[AcceptedRow]):
    """All of them."""

    def add(self, rows: Sequence[AcceptedRow]) -> None:
        self.extend(rows)

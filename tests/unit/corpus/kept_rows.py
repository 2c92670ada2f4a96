"""Takes the accepted rows in the place of the row buffer, and reads a file of prompts into them."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.config.corpus import CorpusConfig, PromptSource
from pipeline.corpus.accepted_rows import AcceptedRow
from pipeline.corpus.first_pass import RowCounts, read_sources
from pipeline.corpus.rendering import Renderer
from pipeline.progress import Progress


class KeptRows(list[AcceptedRow]):
    """All of them."""

    def add(self, rows: Sequence[AcceptedRow]) -> None:
        self.extend(rows)


def read_source(
    source: PromptSource, renderer: Renderer, rejects: Path, progress: Progress | None = None, **corpus: float
) -> tuple[KeptRows, RowCounts]:
    """The rows of one source that are accepted, and all counts; `corpus`: further settings of it."""
    config, kept = CorpusConfig.model_validate({"sources": [source], **corpus}), KeptRows()
    return kept, read_sources(config, [Path(source.path)], renderer, kept, rejects, progress or Progress(False))

"""A directory that passes for an export: what a settling reads of it."""

from pathlib import Path

from pipeline.acceptance.schema import SamplingSettings
from pipeline.engines.facts import FACTS, ExportEngine
from pipeline.export.schema import Expected, ExportedDraft, ServedFigures, write_expected
from pipeline.judgement.schema import TargetSource


def make_export(directory: Path, digest: str, engine: ExportEngine = "vllm") -> None:
    """The export of the draft with this digest."""
    directory.mkdir(parents=True, exist_ok=True)
    expected = Expected(
        convention="vllm",
        sampling=SamplingSettings(1.0, 0, 1.0, 0.0),
        draft_sampling="greedy",
        gamma=5,
        confidence=0.95,
        notes=[],
        deployed=ServedFigures(1, 1, 0.5, {}),
        temperature_0=None,
        engine=engine,
        checked_version="0",
        counters=FACTS[engine].counters,
        draft=ExportedDraft(
            label="draft", digest=digest, exported_digest=digest, variant="unquantized", resized_to_target=False
        ),
        target=TargetSource("org/big", None, "d", "float32"),
        completions="c",
        draft_lengths_by_batch=[],
    )
    write_expected(directory, expected)

"""The content of `expected.json` in an exported directory. Imports nothing heavy."""

from dataclasses import asdict
from pathlib import Path

from pipeline.acceptance.schema import Bounds, Figure, SamplingSettings
from pipeline.config.evaluate import ConventionName, Drafting
from pipeline.config.quantize import Variant
from pipeline.engines.facts import Counters, ExportEngine
from pipeline.judgement.schema import TargetSource
from pipeline.store.files import write_json
from pipeline.store.parsing import Count, CountKey, Flag, Number, Text, format_of, stored

FILE = "expected.json"


@stored
class CounterFigures:
    """What the counters show after one decode of all examined completions, and the ratios of a dashboard."""

    drafts: Number
    accepted: Number
    accepted_per_position: list[Number]  # shares of the drafts
    mean_acceptance_length: Figure
    # By number of prompts that were not examined: where their mean acceptance length will be (a prediction interval).
    fresh_prompts: dict[CountKey, Bounds]
    # Where the engine drafts past the end of a completion, so that every draft has gamma tokens; else None.
    draft_tokens: Number | None = None
    draft_acceptance_rate: Number | None = None
    # Variance of the accepted tokens over that of independent drafts; None in a file of an earlier version.
    design_effect: Number | None = None


@stored(kw_only=False)
class ServedFigures:
    """The examined completions at one sampling tuple, and the counters by every examined draft length."""

    prompts: Count
    tokens: Count
    acceptance_rate: Number
    by_draft_length: dict[CountKey, CounterFigures]


@stored
class ExpectedCounters:
    """The figures, and how the engine drafts and counts."""

    convention: ConventionName
    sampling: SamplingSettings
    draft_sampling: Drafting
    gamma: Count  # the draft length that the engine is started with, or the longest of its schedule
    confidence: Number  # of all intervals
    notes: list[Text]  # what is not exact about the figures
    deployed: ServedFigures
    temperature_0: ServedFigures | None  # None where that is the deployed sampling, or where nothing is stored at it
    # As `deployed`, had the engine the other `draft_sample_method`; None where it has no other, or where that changes nothing.
    other_drafting: ServedFigures | None = None


@stored
class ExportedDraft:
    """The draft as it was registered and as it was exported."""

    label: Text
    digest: Text
    exported_digest: Text
    variant: Variant
    resized_to_target: Flag  # rows were added or cut


@stored(name="file of expected counters", schema=2, remedy="export the draft again (`understudy champion export`)")
class Expected(ExpectedCounters):
    """What an engine's counters should show with this draft."""

    engine: ExportEngine
    checked_version: Text  # of the facts about the engine
    counters: Counters  # their names
    draft: ExportedDraft
    target: TargetSource
    completions: Text  # that the draft was examined on
    draft_lengths_by_batch: list[Count]  # entry n - 1 for batch size n; empty for one length


def read_expected(export: Path) -> Expected:
    """The expected counters of an exported directory. UnderstudyError naming the file if it is missing or damaged."""
    return format_of(Expected).read(export / FILE)


def write_expected(export: Path, expected: Expected) -> None:
    write_json(export / FILE, asdict(expected))

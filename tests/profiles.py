"""An acceptance profile as the evaluate stage makes it, of made-up counts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import PromptCounts, counts_json
from pipeline.acceptance.schema import (
    DEPLOYED,
    ROWS,
    AcceptanceProfile,
    ExaminedDraft,
    ProfileConditions,
    SamplingSettings,
)

DRAFT = ExaminedDraft("plain", 2_500_000, 640_000, "draft")
CONDITIONS = ProfileConditions(
    completions="generate0",
    convention="user",
    draft_sampling="probabilistic",
    sampling=SamplingSettings(1.0, 0, 1.0, 0.0),
    dtype="float32",
    confidence=0.95,
    gamma=2,
    max_gamma=5,
    batch_tokens=8192,
)


def make_profile(counts: Sequence[PromptCounts], **changes: Any) -> AcceptanceProfile:
    """Its figures follow from `counts`."""
    tally = AcceptanceTally(len(counts[0].rounds), ())
    tally.add(counts)
    figures = tally.figures(0.95)
    found: dict[str, Any] = {"draft": DRAFT, "conditions": CONDITIONS, "headline": figures, "greedy": figures}
    return AcceptanceProfile(**{**found, "domains": tally.domains(2, 0.95), **changes})


def profile_json(counts: Sequence[PromptCounts], **changes: Any) -> dict[str, Any]:
    """The content of `acceptance.json`. JSON makes text of its draft lengths."""
    return {**asdict(make_profile(counts, **changes)), ROWS: {DEPLOYED: counts_json(counts)}}

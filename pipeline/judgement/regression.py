"""The regression check: a draft's counts against a small baseline file, prompt by prompt. Pure.

A baseline is the little of a profile that a paired comparison needs, small enough to be committed beside the code that
is checked. Refused unless the lower bound of (draft - baseline) exceeds -margin: not proved is not passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts, acceptance_gain, counts_from_json, counts_json
from pipeline.errors import UsageError

SCHEMA = 2


@dataclass(frozen=True)
class Comparison:
    """The outcome of a check."""

    draft: float  # acceptance rate
    baseline: float
    difference: Interval
    margin: float
    passed: bool


def baseline_json(counts: Sequence[PromptCounts], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a baseline file. `conditions` must be equal for a comparison to mean anything."""
    return {"schema": SCHEMA, "conditions": dict(conditions), "prompts": counts_json(counts)}


def read_baseline(raw: Any, where: str) -> tuple[dict[str, Any], list[PromptCounts]]:
    """Conditions and counts of a baseline file; UsageError naming `where` if it is not one."""
    found = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or found != SCHEMA:
        raise UsageError(
            f"{where}: a baseline of schema {found}, and this version reads schema {SCHEMA}; "
            "examine the draft again and write it anew with --update-baseline"
        )
    try:
        return dict(raw["conditions"]), counts_from_json(raw["prompts"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where}: not a whole baseline ({error}); write one with --update-baseline") from None


def compare(
    draft: Sequence[PromptCounts], baseline: Sequence[PromptCounts], margin: float, confidence: float
) -> Comparison:
    """Paired comparison of acceptance rates. UnderstudyError if the prompts differ, ValueError on empty input."""
    difference = acceptance_gain(draft, baseline, confidence)
    return Comparison(_rate(draft), _rate(baseline), difference, margin, difference.low > -margin)


def _rate(counts: Sequence[PromptCounts]) -> float:
    return sum(item.accepted for item in counts) / sum(item.examined for item in counts)

"""The regression check: compares a draft's counts with a baseline file, prompt by prompt. Pure.

A baseline holds only what a paired comparison needs, so it is small enough to be committed to a repository. The check
passes only if the lower bound of (draft - baseline) exceeds -margin.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts, acceptance_gain, counts_from_json, counts_json
from pipeline.errors import UsageError

SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of a check."""

    draft: float  # acceptance rate
    baseline: float
    difference: Interval
    margin: float
    passed: bool


def baseline_json(counts: Sequence[PromptCounts], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a baseline file. Two examinations can be compared only if their `conditions` are equal."""
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
        raise UsageError(
            f"{where}: not a complete baseline ({error} is missing or wrong); write it anew with --update-baseline"
        ) from None


def compare(
    draft: Sequence[PromptCounts], baseline: Sequence[PromptCounts], margin: float, confidence: float
) -> Comparison:
    """Paired comparison of acceptance rates. UnderstudyError if the prompts differ, ValueError on empty input."""
    difference = acceptance_gain(draft, baseline, confidence)
    return Comparison(
        draft=_rate(draft),
        baseline=_rate(baseline),
        difference=difference,
        margin=margin,
        passed=difference.low > -margin,
    )


def _rate(counts: Sequence[PromptCounts]) -> float:
    return sum(item.accepted for item in counts) / sum(item.examined for item in counts)

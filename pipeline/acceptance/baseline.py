"""A draft's examination as a file that other drafts are compared with: `understudy check --update-baseline` writes it.

It holds only what a paired comparison needs, so it is small enough to be committed to a repository. No I/O, no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.acceptance.profile import PromptCounts, counts_from_json, counts_json
from pipeline.errors import UsageError

SCHEMA = 3


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What two examinations must have in common to be compared."""

    completions: str  # key of the generate artifact
    completions_sha256: str  # digest of the content of its files
    target: str  # digest of the model that generated them
    target_dtype: str
    sampling: dict[str, Any]
    evaluate: dict[str, Any]  # the settings of the examination
    dtype: str  # of the draft


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A draft's counts on the examination completions, and what they depend on."""

    counts: Sequence[PromptCounts]
    conditions: Conditions
    hardware: (
        str  # class of the device, such as "cpu x86_64 AVX512"; figures in low precision may differ between classes
    )
    digest: str  # of the draft
    trained_on: frozenset[str]  # ids of the examined prompts that the draft was trained on


def baseline_json(examined: Examined) -> dict[str, Any]:
    """The content of a baseline file."""
    return {
        "schema": SCHEMA,
        "conditions": asdict(examined.conditions),
        "hardware": examined.hardware,
        "draft": {"digest": examined.digest, "trained_on": sorted(examined.trained_on)},
        "prompts": counts_json(examined.counts),
    }


def read_baseline(raw: Any, where: str) -> Examined:
    """The content of a baseline file; UsageError naming `where` if it is not one."""
    found = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or found != SCHEMA:
        raise UsageError(
            f"{where}: a baseline of schema {found}, and this version reads schema {SCHEMA}; "
            "examine the draft again and write it anew with --update-baseline"
        )
    try:
        return Examined(
            counts=counts_from_json(raw["prompts"]),
            conditions=_conditions(raw["conditions"]),
            hardware=str(raw["hardware"]),
            digest=str(raw["draft"]["digest"]),
            trained_on=frozenset(raw["draft"]["trained_on"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{where}: not a complete baseline ({error} is missing or wrong); write it anew with --update-baseline"
        ) from None


def _conditions(raw: Mapping[str, Any]) -> Conditions:
    found = Conditions(**raw)
    if found.dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"dtype {found.dtype!r}")
    float(found.evaluate["confidence"])  # KeyError or TypeError where it is missing or no number
    return found

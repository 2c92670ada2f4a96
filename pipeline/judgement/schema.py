"""The names in `decision.json` that its writers and readers share. Imports nothing heavy, so that records and logs can be made
without numpy."""

from collections.abc import Mapping
from typing import Any

SCHEMA = 6
PROMOTE, REFUSE, ALREADY_CHAMPION = "promote", "refuse", "already_champion"  # the verdict
PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"  # of a rule
CANDIDATE, BASELINE, LOOKUP, PLAIN = "candidate", "baseline", "prompt_lookup", "plain"  # sides of the comparison
LOAD, FORWARD_TIMES = "load", "forward times"  # what the benefit is computed from
_EVIDENCE = ("drafts", "gains", "benefit", "training", "provenance")


def brief(decision: Mapping[str, Any]) -> dict[str, Any]:
    """The decision without its evidence: what the record of a run holds."""
    return {name: value for name, value in decision.items() if name not in _EVIDENCE}

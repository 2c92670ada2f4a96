"""The figures of a decision: the drafts over the same prompts as the rules, and the paired gains. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.profile import PromptCounts, acceptance_gain, omega_gain
from pipeline.judgement.schema import BASELINE, CANDIDATE


def draft_figures(counts: Sequence[PromptCounts], gamma: int, confidence: float) -> dict[str, Any]:
    """All figures of one draft, with `domains`. UnderstudyError without a prompt."""
    tally = AcceptanceTally(len(counts[0].calls) if counts else 1)
    tally.add(counts)
    found = asdict(tally.figures(confidence)) | {
        "domains": {domain: asdict(entry) for domain, entry in tally.domains(gamma, confidence).items()}
    }
    return dict(json.loads(json.dumps(found)))


def compare_drafts(
    drafts: Mapping[str, Sequence[PromptCounts]], facts: Mapping[str, Mapping[str, Any]], gamma: int, confidence: float
) -> dict[str, Any]:
    """`drafts` holds the figures of each side (candidate, baseline, prompt_lookup) with its `facts`; `gains` holds the paired
    gains of the candidate over the baseline: in acceptance rate, in tokens per target call by gamma, by domain. A side
    without counts is left out."""
    present = {side: counts for side, counts in drafts.items() if counts}
    found = {
        side: {**facts.get(side, {}), **draft_figures(counts, gamma, confidence)} for side, counts in present.items()
    }
    return {"drafts": found, "gains": _gains(present, confidence)}


def _gains(drafts: Mapping[str, Sequence[PromptCounts]], confidence: float) -> dict[str, Any]:
    if CANDIDATE not in drafts or BASELINE not in drafts:
        return {}
    candidate, baseline = drafts[CANDIDATE], drafts[BASELINE]
    by_domain: dict[str, tuple[list[PromptCounts], list[PromptCounts]]] = {}
    for ours, theirs in zip(candidate, baseline, strict=True):
        pair = by_domain.setdefault(ours.domain, ([], []))
        pair[0].append(ours)
        pair[1].append(theirs)
    return {
        "acceptance_rate": asdict(acceptance_gain(candidate, baseline, confidence).figure),
        "tokens_per_target_call": {
            str(gamma): asdict(omega_gain(candidate, baseline, gamma, confidence).figure)
            for gamma in range(1, len(candidate[0].calls) + 1)
        },
        "domains": {
            domain: asdict(acceptance_gain(*by_domain[domain], confidence).figure) for domain in sorted(by_domain)
        },
    }

"""The figures of an acceptance profile, from the counts of its sets of completions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.acceptance.figures import AcceptanceTally
from pipeline.acceptance.schema import (
    AcceptanceProfile,
    SamplingFigures,
    SamplingSettings,
    figures_of,
)
from pipeline.config.evaluate import EvaluateConfig
from pipeline.speculation.settings import Sampling


def profile_figures(
    samplings: Mapping[str, Sampling], tallies: Mapping[str, AcceptanceTally], settings: EvaluateConfig
) -> dict[str, Any]:
    """The fields of a profile that are figures. `samplings` and `tallies` are by set: `deployed`, `greedy`, `also_1`, ..."""
    figures = {name: tally.figures(settings.confidence) for name, tally in tallies.items()}
    return {
        "headline": figures["deployed"],
        "greedy": figures.get("greedy", figures["deployed"]),
        "samplings": [
            SamplingFigures(prompts_as=name, sampling=SamplingSettings.of(samplings[name]), **figures_of(figures[name]))
            for name in samplings
            if name not in ("deployed", "greedy")
        ],
        "domains": tallies["deployed"].domains(settings.gamma, settings.confidence),
    }


def headline_figures(profile: AcceptanceProfile) -> dict[str, float]:
    """The finite figures of an examined draft that a run's record shows."""
    gamma, (headline, greedy) = profile.conditions.gamma, profile.examined
    figures = {
        "acceptance_rate": headline.acceptance_rate.value,
        f"tokens_per_target_call_gamma_{gamma}": headline.tokens_per_target_call[gamma].value,
        "acceptance_rate_greedy": greedy.acceptance_rate.value,
        "loop_share_greedy": greedy.loop_share,
        "draft_bytes": float(profile.draft.bytes),
    }
    figures |= {f"acceptance_rate_{domain}": entry.acceptance_rate.value for domain, entry in profile.domains.items()}
    figures |= {
        f"acceptance_rate_segment_{name}": part.acceptance_rate.value for name, part in headline.by_segment.items()
    }
    return {name: value for name, value in figures.items() if np.isfinite(value)}

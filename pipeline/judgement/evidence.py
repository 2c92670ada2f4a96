"""From examinations to the case that the rules are applied to, and to the figures of the decision. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.profile import PromptCounts
from pipeline.acceptance.profile_file import Examination
from pipeline.acceptance.schema import Profile, SamplingSettings
from pipeline.judgement.comparison import draft_figures, paired_gains
from pipeline.judgement.policy import Case
from pipeline.judgement.schema import (
    BASELINE,
    CANDIDATE,
    LOOKUP,
    Benefit,
    DraftFigures,
    Gains,
    ModelSource,
    Provenance,
    Side,
    TargetSource,
)
from pipeline.models.stored_pair import PairFacts
from pipeline.speculation.settings import SamplingFields
from pipeline.store.artifacts import Manifest


@dataclass(frozen=True)
class Evidence:
    """The figures of the drafts, the gains, the measured speed and the benefit of the candidate; as in `Decision`."""

    drafts: dict[Side, DraftFigures]
    gains: Gains | None
    speed: DecodingSpeed | None
    benefit: Benefit | None


def make_case(examinations: Mapping[Side, Examination], baseline_name: str) -> Case:
    """All examined prompts of candidate, baseline and prompt-lookup."""
    profile = examinations[CANDIDATE].profile
    reasons = {CANDIDATE: profile.broken, baseline_name: examinations[BASELINE].profile.broken}
    return Case(
        candidate=examinations[CANDIDATE].counts,
        baseline=examinations[BASELINE].counts,
        baseline_name=baseline_name,
        prompt_lookup=examinations[LOOKUP].counts,
        draft_bytes=profile.draft.bytes,
        crosscheck_agrees=None if profile.crosscheck is None else profile.crosscheck.agrees,
        broken={name: reason for name, reason in reasons.items() if reason is not None},
    )


def gather(
    profiles: Mapping[Side, Profile],
    case: Case,
    speed: DecodingSpeed | None,
    *,
    is_champion: bool,
    gamma: int,
    confidence: float,
) -> Evidence:
    """Figures over the prompts of `case`. `is_champion`: the baseline is the candidate itself and has no figures of its own."""
    counts: dict[Side, Sequence[PromptCounts]] = {
        CANDIDATE: case.candidate,
        BASELINE: () if is_champion else case.baseline,
        LOOKUP: case.prompt_lookup or (),
    }
    drafts = {side: draft_figures(profiles[side], found, gamma, confidence) for side, found in counts.items() if found}
    if is_champion and speed is not None:
        speed = replace(speed, baseline=None)  # it was measured before the candidate became the champion
    both = CANDIDATE in drafts and BASELINE in drafts
    return Evidence(
        drafts,
        paired_gains(case.candidate, case.baseline, confidence) if both else None,
        speed,
        case.benefit,
    )


def target_source(pair: PairFacts) -> TargetSource:
    """The examined target, from the content of `pair.json`."""
    found = pair["target"]
    return TargetSource(found["source"], found["revision"], found["digest"], found["dtype"])


def provenance(pair: PairFacts, completions: Manifest, sampling: SamplingFields, seed: int) -> Provenance:
    """From the content of `pair.json` and the manifest of the completions."""
    base = pair["draft"]
    return Provenance(
        target=target_source(pair),
        base_draft=ModelSource(base["source"], base["revision"], base["digest"]),
        completions=completions.key,
        completions_made_at=completions.created,
        corpus=completions.inputs["corpus"],
        sampling=SamplingSettings.of(sampling),
        seed=seed,
        environment=completions.environment,
    )

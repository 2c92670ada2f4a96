"""From examinations to the case that the rules are applied to, and to the figures of the decision. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.profile_file import Examination, NotExamined
from pipeline.acceptance.schema import Profile, SamplingSettings
from pipeline.drafts.kinds import rates_compare
from pipeline.judgement.comparison import draft_figures, paired_gains
from pipeline.judgement.policy import Case
from pipeline.judgement.relative_speed import NOT_KNOWN
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


Examinations = Mapping[Side, Examination | NotExamined]


def make_case(examinations: Examinations, baseline_name: str) -> Case | None:
    """All examined prompts of candidate, baseline and prompt-lookup; None where candidate or baseline cannot be examined, so that
    there is nothing to compare."""
    candidate, baseline, lookup = (examinations[side] for side in (CANDIDATE, BASELINE, LOOKUP))
    if isinstance(candidate, NotExamined) or isinstance(baseline, NotExamined):
        return None
    profile, kinds = candidate.profile, {one.profile.draft.kind for one in (candidate, baseline)}
    return Case(
        candidate=candidate.counts,
        baseline=baseline.counts,
        baseline_name=baseline_name,
        prompt_lookup=None if isinstance(lookup, NotExamined) else lookup.counts,
        draft_bytes=profile.draft.bytes,
        round_ratio=None if rates_compare(kinds) else NOT_KNOWN,
        crosscheck_agrees=None if profile.crosscheck is None else profile.crosscheck.agrees,
    )


def reasons_not_examined(examinations: Examinations, baseline_name: str) -> dict[str, str]:
    """Why candidate and baseline cannot be examined, by name."""
    names = {CANDIDATE: str(CANDIDATE), BASELINE: baseline_name}
    found = {names[side]: examinations[side] for side in names}
    return {name: one.why for name, one in found.items() if isinstance(one, NotExamined)}


def gather(
    profiles: Mapping[Side, Profile],
    counts: Mapping[Side, CountTable],
    benefit: Benefit | None,
    speed: DecodingSpeed | None,
    *,
    is_champion: bool,
    gamma: int,
    confidence: float,
) -> Evidence:
    """Figures over the prompts of `counts`; a side without prompts has none. `is_champion`: the baseline is the candidate itself
    and has no figures of its own. No gains where acceptance rates are over different tokens."""
    drafts = {
        side: draft_figures(profiles[side], found, gamma, confidence)
        for side, found in counts.items()
        if len(found) and not (is_champion and side == BASELINE)
    }
    if is_champion and speed is not None:
        speed = replace(speed, baseline=None)  # it was measured before the candidate became the champion
    both = {CANDIDATE, BASELINE} <= drafts.keys()
    both = both and rates_compare(drafts[side].draft.kind for side in (CANDIDATE, BASELINE))
    gains = paired_gains(counts[CANDIDATE], counts[BASELINE], confidence) if both else None
    return Evidence(drafts, gains, speed, benefit)


def counts_of(compared: Case | Examinations) -> dict[Side, CountTable]:
    """The counts of each side that has some."""
    if isinstance(compared, Case):
        found = {CANDIDATE: compared.candidate, BASELINE: compared.baseline, LOOKUP: compared.prompt_lookup}
        return {side: counts for side, counts in found.items() if counts is not None}
    return {side: one.counts for side, one in compared.items() if isinstance(one, Examination)}


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

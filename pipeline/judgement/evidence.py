"""The steps of the gate on what was read: from examinations to the case that the rules are applied to, to the verdict, and to the
figures of the decision. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.profile_file import NotExamined, ProfileWithCounts
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import AcceptanceProfile, Figures, SamplingSettings
from pipeline.acceptance.step_times import StepTimes
from pipeline.config.evaluate import ConventionName
from pipeline.config.gate import GateConfig
from pipeline.config.quantize import UNQUANTIZED, Variant
from pipeline.drafts.kinds import rates_compare
from pipeline.judgement.at_load import StatedLoad
from pipeline.judgement.comparison import draft_figures, paired_gains
from pipeline.judgement.decision import Judgement, already_champion, judge, unseen, without_prompts
from pipeline.judgement.measured_speed import measured_speed
from pipeline.judgement.policy import Case, apply_rules, not_examined
from pipeline.judgement.relative_speed import NOT_KNOWN, RoundRatio, measured_ratio, predicted_ratio
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
from pipeline.judgement.speed import speed_warnings
from pipeline.judgement.what_now import what_now
from pipeline.latency.load.workload import Workload, examined_workload
from pipeline.models.stored_pair import PairFacts
from pipeline.speculation.settings import SamplingFields
from pipeline.store.artifacts import Manifest

Examinations = Mapping[Side, ProfileWithCounts | NotExamined]


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What was read of the drafts that are compared, and how their figures are computed. `unquantized`: the candidate before its
    quantization, of which the step times are. `seen`: the examined prompts that candidate or champion was trained on.
    `is_champion`: the candidate is the champion."""

    examinations: Examinations
    unquantized: ProfileWithCounts | NotExamined
    times: Mapping[Side, StepTimes]
    seen: frozenset[str]
    baseline_name: str  # "champion" or "base draft"
    is_champion: bool
    gamma: int  # deployed
    max_gamma: int
    convention: ConventionName
    confidence: float

    @cached_property
    def speed(self) -> DecodingSpeed | None:
        """The speed as measured on this machine, of the unquantized candidate and the baseline."""
        examined = {CANDIDATE: self.unquantized, BASELINE: self.examinations[BASELINE]}
        return measured_speed(self.times, examined, self.seen, self.confidence)

    def workload(self, counts: CountTable) -> Workload:
        """What the examined prompts ask of an engine with a draft that has these counts."""
        return examined_workload(counts, CONVENTIONS[self.convention], self.max_gamma)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The results of the rules, over the prompts of `counts`. `dropped`: prompts of the candidate that were seen in training."""

    judgement: Judgement
    profiles: Mapping[Side, AcceptanceProfile]
    counts: Mapping[Side, CountTable]
    dropped: int
    benefit: Benefit | None
    speed: DecodingSpeed | None
    times: StepTimes | None  # of the candidate, as `headline`, where its speed is measurable
    headline: Figures | None
    is_champion: bool
    gamma: int
    confidence: float


@dataclass(frozen=True)
class Evidence:
    """The figures of the drafts, the gains, the measured speed and the benefit of the candidate, and what follows from them; as
    in `Decision`."""

    drafts: dict[Side, DraftFigures]
    gains: Gains | None
    speed: DecodingSpeed | None
    benefit: Benefit | None
    warnings: list[str]
    what_now: list[str]


def case_of(sides: Sides) -> Case | None:
    """`make_case`, over the prompts that were not seen in training."""
    case = make_case(sides.examinations, sides.baseline_name)
    return None if case is None else without_prompts(case, sides.seen)


def round_ratio(
    case: Case, sides: Sides, variant: Variant, candidate: StatedLoad | None, champion: StatedLoad | None
) -> RoundRatio | str:
    """What compares the speeds of candidate and champion: their step times at the stated load where both are known, and
    otherwise those of this machine, which are of the unquantized candidate."""
    if candidate is not None and champion is not None:
        return predicted_ratio(candidate, sides.workload(case.candidate), champion, sides.workload(case.baseline))
    if variant != UNQUANTIZED:
        return (
            f"step times of {variant} are not measured; set gate.load, gate.profile.{variant} and gate.champion_profile"
        )
    return measured_ratio(sides.times, sides.speed, sides.gamma, sides.confidence)


def compare(sides: Sides, case: Case | None, policy: GateConfig) -> Compared:
    """Apply the rules. `case`: None where there is nothing to compare."""
    all_counts, speed = counts_of(sides.examinations), sides.speed
    if case is None:
        rules = [not_examined(reasons_not_examined(sides.examinations, sides.baseline_name))]
        counts = {side: unseen(table, sides.seen) for side, table in all_counts.items()}
    else:
        rules, counts = apply_rules(case, policy, sides.gamma, sides.confidence), counts_of(case)
    is_measurable = speed is not None and speed.candidate.speedup is not None
    return Compared(
        judgement=already_champion() if sides.is_champion else judge(rules),
        profiles={side: examination.profile for side, examination in sides.examinations.items()},
        counts=counts,
        dropped=len(all_counts.get(CANDIDATE, ())) - len(counts.get(CANDIDATE, ())),
        benefit=None if case is None else case.benefit,
        speed=speed,
        times=sides.times.get(CANDIDATE) if is_measurable else None,
        headline=sides.unquantized.profile.headline,
        is_champion=sides.is_champion,
        gamma=sides.gamma,
        confidence=sides.confidence,
    )


def make_case(examinations: Examinations, baseline_name: str) -> Case | None:
    """All examined prompts of candidate, baseline and prompt-lookup; None where candidate or baseline cannot be examined, so that
    there is nothing to compare."""
    candidate, baseline, lookup = (examinations[side] for side in (CANDIDATE, BASELINE, LOOKUP))
    if isinstance(candidate, NotExamined) or isinstance(baseline, NotExamined):
        return None
    profile, kinds = candidate.profile, {examination.profile.draft.kind for examination in (candidate, baseline)}
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
    by_name = {names[side]: examinations[side] for side in names}
    return {name: examination.why for name, examination in by_name.items() if isinstance(examination, NotExamined)}


def gather(compared: Compared, next_doubling: float | None) -> Evidence:
    """Figures over the prompts that were compared; a side without prompts has none. Where the candidate is the champion, the
    baseline is the candidate itself and has no figures of its own. No gains where acceptance rates are over different tokens.
    `next_doubling`: what twice as many completions would add, by the learning curve."""
    speed, counts, judgement, confidence = compared.speed, compared.counts, compared.judgement, compared.confidence
    drafts = {
        side: draft_figures(compared.profiles[side], count, compared.gamma, confidence)
        for side, count in counts.items()
        if len(count) and not (compared.is_champion and side == BASELINE)
    }
    if compared.is_champion and speed is not None:
        speed = replace(speed, baseline=None)  # it was measured before the candidate became the champion
    both = {CANDIDATE, BASELINE} <= drafts.keys()
    both = both and rates_compare(drafts[side].draft.kind for side in (CANDIDATE, BASELINE))
    return Evidence(
        drafts,
        paired_gains(counts[CANDIDATE], counts[BASELINE], confidence) if both else None,
        speed,
        compared.benefit,
        speed_warnings(judgement.verdict, judgement.rules, speed),
        what_now(judgement.rules, compared.times, compared.headline, next_doubling),
    )


def counts_of(compared: Case | Examinations) -> dict[Side, CountTable]:
    """The counts of each side that has some."""
    if isinstance(compared, Case):
        tables = {CANDIDATE: compared.candidate, BASELINE: compared.baseline, LOOKUP: compared.prompt_lookup}
        return {side: counts for side, counts in tables.items() if counts is not None}
    return {
        side: examination.counts for side, examination in compared.items() if isinstance(examination, ProfileWithCounts)
    }


def target_source(pair: PairFacts) -> TargetSource:
    """The examined target, from the content of `pair.json`."""
    target = pair["target"]
    return TargetSource(target["source"], target["revision"], target["digest"], target["dtype"])


def provenance(pair: PairFacts, completions: Manifest, sampling: SamplingFields, seed: int) -> Provenance:
    """Where the figures come from, by the content of `pair.json` and the manifest of the completions."""
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

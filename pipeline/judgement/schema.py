"""The content of `decision.json`. Imports nothing heavy, so that records, logs and reports can be made without numpy.

Figures by draft length are dictionaries from gamma, those by side from `candidate`, `baseline` and so on.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from pipeline.acceptance.decoding_speed import DecodingSpeed
from pipeline.acceptance.schema import (
    DomainFigures,
    ExaminedDraft,
    Figure,
    Figures,
    ProfileConditions,
    SamplingSettings,
)
from pipeline.config.quantize import Variant
from pipeline.judgement.rule_result import RuleResult
from pipeline.store.parsing import KNOWN_FIELDS_ONLY, Count, CountKey, Number, Text, Whole

SCHEMA = 10
FILE = "decision.json"

Verdict = Literal["promote", "refuse", "already_champion"]
PROMOTE: Verdict = "promote"
REFUSE: Verdict = "refuse"
ALREADY_CHAMPION: Verdict = "already_champion"

Side = Literal["candidate", "baseline", "prompt_lookup", "plain"]  # of the comparison; plain: decoding without a draft
CANDIDATE: Side = "candidate"
BASELINE: Side = "baseline"
LOOKUP: Side = "prompt_lookup"
PLAIN: Side = "plain"
SIDES = (CANDIDATE, BASELINE, LOOKUP, PLAIN)  # in the order in which people read them

StandingVerdict = Literal["chosen", "slower", "refused", "not compared", "not made"]


@dataclass(frozen=True, kw_only=True)
class VariantFigures:
    """A variant over all examination prompts, at the decision's draft length."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    bytes: Count
    acceptance_rate: Figure
    tokens_per_target_call: Figure


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The result for a variant of the candidate, with the reason in one line for people."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    name: Variant
    verdict: StandingVerdict
    text: Text
    figures: VariantFigures | None  # None for a variant that was not made, or cannot be computed
    seconds: Number | None  # predicted mean request latency on dev prompts


@dataclass(frozen=True)
class ChampionVersion:
    """The registered draft that the candidate was compared with."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    name: Text
    version: Text


@dataclass(frozen=True)
class GreedyFigures:
    """Figures at temperature 0."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    acceptance_rate: Figure
    loop_share: Number


@dataclass(frozen=True, kw_only=True)
class ComparedFigures(Figures):
    """All figures of a draft over the prompts that are compared, also by domain."""

    domains: dict[Text, DomainFigures]


@dataclass(frozen=True, kw_only=True)
class DraftFigures(ComparedFigures):
    """With what is known of the draft and of its examination."""

    draft: ExaminedDraft
    greedy: GreedyFigures | None  # over all examined prompts; None for a draft that cannot be examined
    conditions: ProfileConditions


@dataclass(frozen=True)
class Gains:
    """Candidate minus baseline, paired by prompt."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    acceptance_rate: Figure
    tokens_per_target_call: dict[CountKey, Figure]
    domains: dict[Text, Figure]  # of the acceptance rate
    segments: dict[Text, Figure] = field(default_factory=dict)  # the same


@dataclass(frozen=True)
class LatencyFigures:
    """Seconds of a request. Quantiles are by name, such as p95."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    mean_seconds: Number
    quantile_seconds: dict[Text, Number]


@dataclass(frozen=True)
class SideAtLoad(LatencyFigures):
    """At the stated load; `tokens_per_second` is at capacity."""

    ms_per_token: Number
    tokens_per_second: Number


@dataclass(frozen=True)
class LoadFigures:
    """Predicted latency at one load. A side is None where its queue would grow without bound."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    requests_per_second: Number
    speedup: Number | None
    candidate: LatencyFigures | None
    plain: LatencyFigures | None


@dataclass(frozen=True, kw_only=True)
class Benefit:
    """What the candidate buys, predicted at `gate.load`. A side is absent where its queue would grow without bound."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    requests_per_second: Number
    max_batch: Count
    gamma: Count
    sides: dict[Side, SideAtLoad]
    by_load: list[LoadFigures]


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """An entry of the candidate's training log: the loss, or an examination on dev prompts."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    step: Count
    loss: Number | None = None
    loss_by_segment: dict[Text, Number] = field(
        default_factory=dict
    )  # of a token, without weights; empty where all are of one
    dev_acceptance_rate: Number | None = None
    dev_acceptance_rate_by_segment: dict[Text, Number] = field(default_factory=dict)
    dev_tokens_per_target_call: Number | None = None


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    source: Text
    revision: Text | None
    digest: Text


@dataclass(frozen=True)
class TargetSource(ModelSource):
    """The examined target."""

    dtype: Text


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What the decision was made from."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    target: TargetSource
    base_draft: ModelSource
    completions: Text  # key
    completions_made_at: Text
    corpus: Text  # key
    sampling: SamplingSettings
    seed: Whole
    environment: dict[Text, Text]  # versions and machine


@dataclass(frozen=True, kw_only=True)
class BriefDecision:
    """A decision without its evidence: what the record of a run holds."""

    __pydantic_config__ = KNOWN_FIELDS_ONLY

    schema: int = SCHEMA
    verdict: Verdict
    reasons: list[Text]  # the text of each rule that did not pass
    warnings: list[Text]  # of a draft that passed: why it may be worth nothing, in the words that follow "passed, but"
    rules: list[RuleResult]
    candidate: Text  # digest
    variant: Variant
    variants: list[Standing]
    baseline: Literal["champion", "base"]  # what the candidate was compared with
    champion: ChampionVersion | None
    gamma: Count
    confidence: Number
    dropped_prompts: Count  # left out, because candidate or champion was trained on them
    speed: DecodingSpeed | None  # measured on the machine of the run; None where nothing was measured


@dataclass(frozen=True, kw_only=True)
class Decision(BriefDecision):
    """A decision of the gate."""

    drafts: dict[Side, DraftFigures]
    gains: Gains | None  # None where a side has no figures, and where the candidate is the champion
    benefit: Benefit | None
    training: list[TrainingStep] = field(default_factory=list)
    provenance: Provenance


REMEDY = "run the config again"


def brief(decision: Decision) -> dict[str, Any]:
    """The decision without its evidence, as JSON for the record of a run."""
    found = asdict(decision)
    return {item.name: found[item.name] for item in fields(BriefDecision)}

"""The content of `decision.json`. Imports nothing heavy, so that records, logs and reports can be made without numpy.

Figures by draft length are dictionaries from gamma, those by side from `candidate`, `baseline` and so on.
"""

from dataclasses import asdict, field, fields
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
from pipeline.store.parsing import Count, CountKey, Number, Text, Whole, stored

FILE, _SCHEMA = "decision.json", 10
REMEDY = "run the config again"

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


@stored
class VariantFigures:
    """A variant over all examination prompts, at the decision's draft length."""

    bytes: Count
    acceptance_rate: Figure
    tokens_per_target_call: Figure


@stored
class Standing:
    """The result for a variant of the candidate, with the reason in one line for people."""

    name: Variant
    verdict: StandingVerdict
    text: Text
    figures: VariantFigures | None  # None for a variant that was not made, or cannot be computed
    seconds: Number | None  # predicted mean request latency on dev prompts


@stored(kw_only=False)
class ChampionVersion:
    """The registered draft that the candidate was compared with."""

    name: Text
    version: Text


@stored(kw_only=False)
class GreedyFigures:
    """Figures at temperature 0."""

    acceptance_rate: Figure
    loop_share: Number


@stored
class ComparedFigures(Figures):
    """All figures of a draft over the prompts that are compared, also by domain."""

    domains: dict[Text, DomainFigures]


@stored
class DraftFigures(ComparedFigures):
    """Figures, with what is known of the draft and of its examination."""

    draft: ExaminedDraft
    greedy: GreedyFigures | None  # over all examined prompts; None for a draft that cannot be examined
    conditions: ProfileConditions


@stored(kw_only=False)
class Gains:
    """Candidate minus baseline, paired by prompt."""

    acceptance_rate: Figure
    tokens_per_target_call: dict[CountKey, Figure]
    domains: dict[Text, Figure]  # of the acceptance rate
    segments: dict[Text, Figure] = field(default_factory=dict)  # the same


@stored(kw_only=False)
class LatencyFigures:
    """Seconds of a request. Quantiles are by name, such as p95."""

    mean_seconds: Number
    quantile_seconds: dict[Text, Number]


@stored(kw_only=False)
class SideAtLoad(LatencyFigures):
    """Figures of a side at the stated load; `tokens_per_second` is at capacity."""

    ms_per_token: Number
    tokens_per_second: Number


@stored(kw_only=False)
class LoadFigures:
    """Predicted latency at one load. A side is None where its queue would grow without bound."""

    requests_per_second: Number
    speedup: Number | None
    candidate: LatencyFigures | None
    plain: LatencyFigures | None


@stored(kw_only=False)
class TokenRates:
    """Predicted output tokens per second in a load test that keeps so many requests open."""

    requests: Count
    each: Number  # of one user, after the first token
    all: Number


@stored
class Benefit:
    """What the candidate buys, predicted at `gate.load`. A side is absent where its queue would grow without bound."""

    requests_per_second: Number
    max_batch: Count
    gamma: Count
    sides: dict[Side, SideAtLoad]
    by_load: list[LoadFigures]
    output_tokens: Number | None = (
        None  # mean of a request; None and nothing below in files of versions before 20 of the gate
    )
    by_draft_length: dict[CountKey, list[TokenRates]] = field(default_factory=dict)  # 0: plain decoding


@stored
class TrainingStep:
    """An entry of the candidate's training log: the loss, or an examination on dev prompts. With a
    `trial_learning_rate`: the end of a short training before it, without figures if that diverged."""

    step: Count
    loss: Number | None = None
    loss_by_segment: dict[Text, Number] = field(
        default_factory=dict
    )  # of a token, without weights; empty where all are of one
    dev_acceptance_rate: Number | None = None
    dev_acceptance_rate_by_segment: dict[Text, Number] = field(default_factory=dict)
    dev_tokens_per_target_call: Number | None = None
    trial_learning_rate: Number | None = None
    learning_rate: Number | None = None  # the peak rate that trials gave, in an entry of its own


@stored
class RowsFigures:
    """Figures of tokens of the target whose rows in the base draft were made in one way."""

    tokens: Count
    share: Number  # of the text of the examination prompts and their completions
    acceptance_before: Number | None  # of the tokens of completions, by the base draft; None where there are none
    acceptance_after: Number | None  # by the candidate


@stored
class NewVocabulary:
    """Figures of a base draft that had another tokenizer than the target: see `docs/drafts.md`."""

    rows: dict[Text, RowsFigures]  # by how they were made
    roles: dict[Text, dict[Text, RowsFigures]]  # of special tokens without a counterpart, by token and segment
    unwritten: Number  # share of the text that the draft's own tokenizer cannot write
    lost: list[Text]  # what it changes in a text
    no_map: Text  # why no row is mapped; empty where some are
    map_error: Number | None  # leave-one-out, as a share of the rows' spread
    output_map_error: Number | None
    base: Figure | None  # acceptance rate of the base draft; None where it cannot be examined


@stored(kw_only=False)
class ModelSource:
    """Where a model comes from."""

    source: Text
    revision: Text | None
    digest: Text


@stored(kw_only=False)
class TargetSource(ModelSource):
    """The examined target."""

    dtype: Text


@stored
class Provenance:
    """What the decision was made from."""

    target: TargetSource
    base_draft: ModelSource
    completions: Text  # key
    completions_made_at: Text
    corpus: Text  # key
    sampling: SamplingSettings
    seed: Whole
    environment: dict[Text, Text]  # versions and machine


@stored(name="decision", schema=_SCHEMA, remedy=REMEDY)
class BriefDecision:
    """A decision without its evidence: what the record of a run holds."""

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
    what_now: list[Text] = field(
        default_factory=list
    )  # what can be done about it, in the order in which it should be read


@stored(name="decision", schema=_SCHEMA, remedy=REMEDY)
class Decision(BriefDecision):
    """A decision of the gate."""

    drafts: dict[Side, DraftFigures]
    gains: Gains | None  # None where a side has no figures, and where the candidate is the champion
    benefit: Benefit | None
    training: list[TrainingStep] = field(default_factory=list)
    new_vocabulary: NewVocabulary | None = None
    provenance: Provenance


def brief(decision: Decision) -> dict[str, Any]:
    """The decision without its evidence, as JSON for the record of a run."""
    content = asdict(decision)
    return {item.name: content[item.name] for item in fields(BriefDecision)}

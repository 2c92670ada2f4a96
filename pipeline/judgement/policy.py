"""The promotion rules, as pure functions of acceptance profiles. No I/O, no model.

A rule has three outcomes: pass, fail, and inconclusive where the data proves neither. Only pass promotes.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipeline.acceptance.count_table import CountTable
from pipeline.acceptance.decoding_speed import too_few
from pipeline.acceptance.gains import (
    acceptance_gain,
    omega_gain,
    position_gain,
    sample_of,
    segment_gain,
)
from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.position_bins import bin_edges
from pipeline.acceptance.schema import Figure, counted, units_needed
from pipeline.config.gate import GateConfig, ServedTargetConfig
from pipeline.config.quantiles import quantile_of
from pipeline.errors import UnderstudyError
from pipeline.judgement.age import examination_age
from pipeline.judgement.judged_segments import segment_shares
from pipeline.judgement.power import power_of
from pipeline.judgement.relative_speed import RoundRatio, speed_gain
from pipeline.judgement.rule_result import FAIL, INCONCLUSIVE, OF_SPEED, PASS, RuleResult, RuleVerdict
from pipeline.judgement.schema import CANDIDATE, Benefit, TargetSource
from pipeline.latency.load.serving import LatencyAtLoad


@dataclass(frozen=True, kw_only=True)
class Case:
    """The data of a decision: per-prompt counts over the same prompts, the draft's size, and the cross-check's result."""

    candidate: CountTable
    baseline: CountTable
    baseline_name: str  # "champion" or "base draft"
    prompt_lookup: CountTable | None
    draft_bytes: float | None
    crosscheck_agrees: bool | None
    # None: acceptance rates of both compare (`drafts.kinds.rates_compare`). Otherwise what compares their speeds, or why nothing
    # does.
    round_ratio: RoundRatio | str | None = None
    domains: Mapping[str, int] = field(
        default_factory=dict
    )  # examined prompts by domain, where some are not in the rows
    served: LatencyAtLoad | None = None  # predicted latency at the stated load; None where no load is stated
    benefit: Benefit | None = None  # of that load
    target: TargetSource | None = None  # that was examined
    examination_days: float | None = None  # age of the completions
    serving_bytes: float | None = None  # weights and KV cache at the stated batch and context
    champion_modes: frozenset[str] = (
        frozenset()
    )  # of the chat template, that the champion was trained in, where they are known
    examined_modes: frozenset[str] = frozenset()


def apply_rules(case: Case, policy: GateConfig, gamma: int, confidence: float) -> list[RuleResult]:
    """Every rule of the policy, in the order people read them."""
    overall = _Overall(case, gamma, confidence)
    rules = [_enough_prompts(case, policy), _gain(overall, policy)]
    rules += [_domain(overall, domain, policy) for domain in _domains(case, policy)]
    if policy.segment_margin is not None:
        judged = [segment.name for segment in segment_shares(case.candidate) if segment.judged]
        rules += [_segment(case, name, policy, policy.segment_margin, confidence) for name in judged]
    if policy.length_margin is not None:
        rules += [_length(case, number, policy, policy.length_margin, confidence) for number in _position_bins(case)]
    if policy.champion_modes and case.champion_modes and case.champion_modes | case.examined_modes != {""}:
        rules.append(_champion_modes(case.champion_modes, case.examined_modes))
    if policy.beats_prompt_lookup:
        rules.append(_beats_lookup(case, gamma, confidence))
    if policy.max_draft_megabytes is not None:
        rules.append(_size(case.draft_bytes, policy.max_draft_megabytes))
    if policy.least_speedup is not None:
        rules.append(_speedup(case, policy.least_speedup))
    by_quantile = sorted(policy.max_latency_seconds.items(), key=lambda item: quantile_of(item[0]))
    rules += [_latency(case.served, name, most) for name, most in by_quantile]
    if policy.max_memory_megabytes is not None:
        rules.append(_memory(case.serving_bytes, policy.max_memory_megabytes))
    if policy.served_target is not None:
        rules.append(_served_target(case.target, policy.served_target))
    if policy.max_examination_days is not None:
        rules.append(examination_age(case.examination_days, policy.max_examination_days))
    rules.append(_crosscheck(case.crosscheck_agrees))
    return rules


def not_examined(reasons: Mapping[str, str]) -> RuleResult:
    """The only result where a draft cannot be examined: the rules would speak of prompts and cross-checks that are missing for
    this reason alone. `reasons`: by the name of the draft."""
    text = "; ".join(f"the {name} cannot be examined: {why}" for name, why in reasons.items())
    return RuleResult(name="examined", verdict=FAIL if CANDIDATE in reasons else INCONCLUSIVE, text=text)


def _domains(case: Case, policy: GateConfig) -> list[str]:
    """The domains that have rules, by their share of the examined prompts: also of those that a draft was trained on, because a
    domain must not disappear by that."""
    prompts = case.domains or Counter(case.candidate.domains)
    return sorted(name for name in prompts if prompts[name] >= policy.min_domain_share * sum(prompts.values()))


def _enough_prompts(case: Case, policy: GateConfig) -> RuleResult:
    by_domain = Counter(
        domain for domain, _ in set(zip(case.candidate.domains, case.candidate.conversations, strict=True))
    )
    counts = {domain: by_domain[domain] for domain in _domains(case, policy)}
    domain, fewest = min(counts.items(), key=lambda item: item[1], default=(None, by_domain.total()))
    prompts, conversations = sample_of(case.candidate if domain is None else case.candidate.in_domain(domain))
    where = "" if domain is None else f" in '{domain}', the smallest domain"
    text = (
        f"{counted(prompts, conversations)} that neither draft was trained on{where}; "
        f"{units_needed(policy.min_prompts_per_domain, conversations)} are needed"
    )
    verdict = PASS if fewest >= policy.min_prompts_per_domain else INCONCLUSIVE
    return _measured("min_prompts_per_domain", verdict, text, float(fewest), float(policy.min_prompts_per_domain))


@dataclass(frozen=True)
class _Overall:
    """The gain over the baseline, over the whole traffic or a domain: in acceptance rate; or in tokens per second over a
    baseline of another kind, whose rates are of different tokens."""

    case: Case
    gamma: int
    confidence: float

    def name(self, rule: str) -> str:
        """The name of the rule that is about acceptance where acceptance rates compare."""
        return rule if self.case.round_ratio is None else OF_SPEED[rule]

    @property
    def unit(self) -> str:
        return "point" if self.case.round_ratio is None else "%"

    def text(self, where: str = "") -> str:
        ratio, over = self.case.round_ratio, f"{where} over the {self.case.baseline_name}"
        if ratio is None:
            return f"gain in acceptance rate{over}"
        source = "" if isinstance(ratio, str) else f" (rounds {ratio.source})"
        return f"gain in tokens per second{over}, which is another kind of draft{source}"

    def gain(self, candidate: CountTable, baseline: CountTable) -> Interval:
        """ValueError where no step times are known."""
        ratio = self.case.round_ratio
        if ratio is None:
            return acceptance_gain(candidate, baseline, self.confidence)
        if isinstance(ratio, str):
            raise ValueError(ratio)
        return speed_gain(candidate, baseline, self.gamma, ratio, self.confidence)


def _gain(overall: _Overall, policy: GateConfig) -> RuleResult:
    case = overall.case
    return _proved(
        overall.name("min_gain"),
        lambda: overall.gain(case.candidate, case.baseline),
        policy.min_gain,
        overall.confidence,
        text=overall.text(),
        scale=100,
        unit=overall.unit,
    )


def _domain(overall: _Overall, domain: str, policy: GateConfig) -> RuleResult:
    candidate, baseline = (side.in_domain(domain) for side in (overall.case.candidate, overall.case.baseline))
    return _margin(
        f"{overall.name('domain_margin')}:{domain}",
        lambda: overall.gain(candidate, baseline),
        policy.domain_margin,
        overall.confidence,
        few=_too_few(f"'{domain}' has", candidate, policy),
        text=overall.text(f" in '{domain}'"),
        unit=overall.unit,
    )


def _segment(case: Case, name: str, policy: GateConfig, margin: float, confidence: float) -> RuleResult:
    within = case.candidate.select(case.candidate.segments[name].places_M)
    return _margin(
        f"segment_margin:{name}",
        lambda: segment_gain(case.candidate, case.baseline, name, confidence),
        margin,
        confidence,
        few=_other_rates(case) or _too_few(f"the segment '{name}' is in", within, policy),
        text=f"gain in acceptance rate in the segment '{name}' over the {case.baseline_name}",
    )


def _position_bins(case: Case) -> range:
    return range(int(case.candidate.bins["accepted_by_output"].lengths_N.max(initial=0)))


def _length(case: Case, number: int, policy: GateConfig, margin: float, confidence: float) -> RuleResult:
    start, end = bin_edges(number)
    within = case.candidate.select(case.candidate.bins["accepted_by_output"].lengths_N > number)
    return _margin(
        f"length_margin:{start}-{end}",
        lambda: position_gain(case.candidate, case.baseline, number, confidence),
        margin,
        confidence,
        few=_other_rates(case) or _too_few(f"output token {start} is reached by", within, policy),
        text=f"gain in acceptance rate from output token {start} to before {end} over the {case.baseline_name}",
    )


def _other_rates(case: Case) -> str:
    """Why acceptance in a part of a completion is not compared; empty where it is."""
    return (
        ""
        if case.round_ratio is None
        else f"acceptance of another kind of draft than the {case.baseline_name} is of other tokens"
    )


def _too_few(where: str, within: CountTable, policy: GateConfig) -> str:
    """Why a part of the traffic cannot be judged; empty where it has independent units enough."""
    prompts, conversations = sample_of(within)
    if (prompts if conversations is None else conversations) >= policy.min_prompts_per_domain:
        return ""
    needed = f"{units_needed(policy.min_prompts_per_domain, conversations)} are needed"
    return f"{where} only {counted(prompts, conversations)} that neither draft was trained on; {needed}"


def _margin(
    name: str,
    measure: Callable[[], Interval],
    margin: float,
    confidence: float,
    *,
    few: str,
    text: str,
    unit: str = "point",
) -> RuleResult:
    """The rule that a part of the traffic loses no more than `margin`. `few`: why it cannot be judged, or empty."""
    if few:
        return _without_figure(name, few, -margin)
    return _proved(name, measure, -margin, confidence, text=text, scale=100, unit=unit)


def _champion_modes(trained: frozenset[str], examined: frozenset[str]) -> RuleResult:
    """A champion is not judged by another mode than its own: nothing shows what its traffic there would lose."""
    missing = [mode or "the template's default" for mode in sorted(trained - examined)]
    text = (
        f"the champion was trained in modes of the chat template that are not examined: {'; '.join(missing)}; add a source with "
        "these chat_template_arguments, or give the mode up (gate.champion_modes)"
        if missing
        else "every mode of the chat template that the champion was trained in is examined"
    )
    return RuleResult(name="champion_modes", verdict=INCONCLUSIVE if missing else PASS, text=text)


def _beats_lookup(case: Case, gamma: int, confidence: float) -> RuleResult:
    lookup = case.prompt_lookup
    if lookup is None:
        return _without_figure("beats_prompt_lookup", "prompt-lookup was not examined", 0.0)
    return _proved(
        "beats_prompt_lookup",
        lambda: omega_gain(case.candidate, lookup, gamma, confidence),
        0.0,
        confidence,
        text=f"gain in tokens per target call over prompt-lookup, gamma {gamma}",
        scale=1,
        unit="token",
    )


def _proved(
    name: str,
    measure: Callable[[], Interval],
    threshold: float,
    confidence: float,
    *,
    text: str,
    scale: float,
    unit: str,
) -> RuleResult:
    """Pass only if the interval's lower bound exceeds the threshold. No verdict, and so no promotion, without a figure."""
    try:
        gain = measure()
    except (ValueError, UnderstudyError) as error:
        return _without_figure(name, f"{text}: no figure ({error})", threshold)
    finite = gain.low > float("-inf")
    interval = f"[{gain.low * scale:+.2f}, {gain.high * scale:+.2f}]" if finite else "[no interval]"
    shown = f"{text}: {gain.value * scale:+.2f}{_plural(unit)} {interval}, {_demand(threshold * scale, unit)}"
    fails = finite and gain.high <= threshold
    return RuleResult(
        name=name,
        verdict=PASS if gain.low > threshold else FAIL if fails else INCONCLUSIVE,
        text=shown,
        figure=gain.figure,
        threshold=threshold,
        power=power_of(gain, threshold, confidence),
    )


def _demand(threshold: float, unit: str) -> str:
    """The condition on the lower bound of a gain, in words."""
    return f"lower bound must be above {threshold:.2f}{f' {unit}' if abs(threshold) == 1 and unit != '%' else _plural(unit)}"


def _plural(unit: str) -> str:
    return unit if unit == "%" else f" {unit}s"


def _size(draft_bytes: float | None, limit_megabytes: float) -> RuleResult:
    if draft_bytes is None or not math.isfinite(draft_bytes):
        return _without_figure("max_draft_megabytes", "the draft's size is not known", limit_megabytes)
    megabytes = draft_bytes / 1e6
    verdict = PASS if megabytes <= limit_megabytes else FAIL
    text = f"draft weights: {megabytes:.2f} MB, at most {limit_megabytes:g} MB allowed"
    return _measured("max_draft_megabytes", verdict, text, megabytes, limit_megabytes)


def _speedup(case: Case, least: float) -> RuleResult:
    """The rule on speed. Where it is not measurable, its line is the reason."""
    name, text, served = "min_speedup", "predicted speedup over plain decoding at the stated load", case.served
    if served is None:
        return _without_figure(name, f"{text}: not measurable: there is no prediction for this variant", least)
    if served.mean is None:
        return _without_figure(name, f"{text}: offered load exceeds capacity with speculation", least, FAIL)
    if (few := too_few(len(case.candidate), int(case.candidate.columns["tokens"].sum()))) is not None:
        return _without_figure(name, f"{text}: not measurable: {few} in the examination", least)
    if served.speedup is None:
        return _without_figure(name, f"{text}: offered load exceeds the capacity of plain decoding", least, PASS)
    figure = served.speedup
    if not math.isfinite(figure.low):
        units = counted(figure.prompts, figure.conversations)
        return _without_figure(name, f"{text}: not measurable: {figure.value:.2f} has no interval over {units}", least)
    shown = f"{text}: {figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}], lower bound must be above {least:g}"
    return _bounded(name, shown, figure, figure.low > least, figure.high <= least, least)


def _latency(served: LatencyAtLoad | None, quantile: str, most: float) -> RuleResult:
    name, text = f"max_latency_seconds:{quantile}", f"predicted {quantile} latency at the stated load"
    if served is not None and served.mean is None:
        return _without_figure(name, f"{text}: offered load exceeds capacity with speculation", most, FAIL)
    figure = None if served is None else served.quantiles.get(quantile_of(quantile))
    if figure is None:
        return _without_figure(name, f"{text}: no figure", most)
    shown = f"{text}: {figure.value:.3g} s [{figure.low:.3g}, {figure.high:.3g}], upper bound must be below {most:g} s"
    return _bounded(name, shown, figure, figure.high < most, figure.low >= most, most)


def _bounded(name: str, text: str, figure: Interval, passes: bool, fails: bool, threshold: float) -> RuleResult:
    known = math.isfinite(figure.low) and math.isfinite(figure.high)
    verdict: RuleVerdict = INCONCLUSIVE if not known else PASS if passes else FAIL if fails else INCONCLUSIVE
    return RuleResult(name=name, verdict=verdict, text=text, figure=figure.figure, threshold=threshold)


def _measured(name: str, verdict: RuleVerdict, text: str, value: float, threshold: float) -> RuleResult:
    """A rule about a figure that is no estimate over prompts."""
    return RuleResult(name=name, verdict=verdict, text=text, figure=Figure(value, None, None, 0), threshold=threshold)


def _without_figure(name: str, text: str, threshold: float, verdict: RuleVerdict = INCONCLUSIVE) -> RuleResult:
    return RuleResult(name=name, verdict=verdict, text=text, threshold=threshold)


def _memory(serving_bytes: float | None, limit_megabytes: float) -> RuleResult:
    if serving_bytes is None or not math.isfinite(serving_bytes):
        return _without_figure("max_memory_megabytes", "the memory of the pair is not known", limit_megabytes)
    megabytes = serving_bytes / 1e6
    text = f"weights and KV cache at the stated batch and context: {megabytes:,.0f} MB, at most {limit_megabytes:g} MB allowed"
    verdict = PASS if megabytes <= limit_megabytes else FAIL
    return _measured("max_memory_megabytes", verdict, text, megabytes, limit_megabytes)


def _served_target(examined: TargetSource | None, served: ServedTargetConfig) -> RuleResult:
    """The drafts' figures hold for one target in one number format only."""
    if examined is None:
        return RuleResult(name="served_target", verdict=INCONCLUSIVE, text="the examined target is not known")
    differing = []
    if served.revision is not None and served.revision not in (examined.revision, examined.digest):
        known = examined.revision or examined.digest
        differing.append(f"revision {known} was examined, and {served.revision} is served")
    if served.dtype is not None and served.dtype != examined.dtype:
        differing.append(f"{examined.dtype} was examined, and {served.dtype} is served")
    text = "; ".join(differing) or "the examined target is the one that is served"
    return RuleResult(name="served_target", verdict=FAIL if differing else PASS, text=text)


def _crosscheck(agrees: bool | None) -> RuleResult:
    if agrees is None:
        text = "no cross-check by decoding (evaluate.crosscheck_prompts is 0)"
        return RuleResult(name="crosscheck", verdict=INCONCLUSIVE, text=text)
    text = (
        "speculative decoding matches the prediction of the examination"
        if agrees
        else "speculative decoding or the stored log p differs from the examination by more than near-ties"
    )
    return RuleResult(name="crosscheck", verdict=PASS if agrees else FAIL, text=text)

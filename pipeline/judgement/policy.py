"""The promotion rules, as pure functions of acceptance profiles. No I/O, no model.

A rule has three outcomes: pass, fail, and inconclusive where the data proves neither. Only pass promotes.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.acceptance.intervals import Interval
from pipeline.acceptance.profile import PromptCounts, acceptance_gain, omega_gain
from pipeline.config.gate import GateConfig, ServedTargetConfig
from pipeline.config.quantiles import quantile_of
from pipeline.errors import UnderstudyError
from pipeline.judgement.power import Power, power_of
from pipeline.judgement.schema import FAIL, INCONCLUSIVE, PASS
from pipeline.latency.load.serving import LatencyAtLoad


@dataclass(frozen=True)
class Rule:
    """The result of one rule. Figures are null in `decision.json` where there are none."""

    name: str
    verdict: str
    text: str  # one line for people, with the figures
    figure: float | None = None
    low: float | None = None
    high: float | None = None
    threshold: float | None = None
    power: Power | None = None  # of a rule about a gain, where it has an interval


@dataclass(frozen=True, kw_only=True)
class Case:
    """The data of a decision: per-prompt counts over the same prompts, the draft's size, and the cross-check's result."""

    candidate: Sequence[PromptCounts]
    baseline: Sequence[PromptCounts]
    baseline_name: str  # "champion" or "base draft"
    prompt_lookup: Sequence[PromptCounts] | None
    draft_bytes: float | None
    crosscheck_agrees: bool | None
    domains: frozenset[str] = frozenset()  # that have a rule even if none of their prompts is left
    served: LatencyAtLoad | None = None  # predicted latency at the stated load; None where no load is stated
    benefit: Mapping[str, Any] | None = None  # of that load, as `judgement/benefit.py` makes it
    target: Mapping[str, Any] = field(default_factory=dict)  # revision, digest and dtype of the examined target
    examination_days: float | None = None  # age of the completions
    serving_bytes: float | None = None  # weights and KV cache at the stated batch and context


def apply_rules(case: Case, policy: GateConfig, gamma: int, confidence: float) -> list[Rule]:
    """Every rule of the policy, in the order people read them."""
    rules = [_enough_prompts(case, policy), _gain(case, policy, confidence)]
    rules += [_domain(case, domain, policy, confidence) for domain in sorted(_domains(case))]
    if policy.beats_prompt_lookup:
        rules.append(_beats_lookup(case, gamma, confidence))
    if policy.max_draft_megabytes is not None:
        rules.append(_size(case.draft_bytes, policy.max_draft_megabytes))
    if policy.min_speedup is not None:
        rules.append(_speedup(case.served, policy.min_speedup))
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


def _domains(case: Case) -> set[str]:
    return {item.domain for item in case.candidate} | case.domains


def _enough_prompts(case: Case, policy: GateConfig) -> Rule:
    found = Counter(item.domain for item in case.candidate)
    counts = {domain: found[domain] for domain in sorted(_domains(case))}
    domain, fewest = min(counts.items(), key=lambda item: item[1], default=("any domain", 0))
    text = (
        f"{fewest} prompts that neither draft was trained on in '{domain}', the smallest domain; "
        f"{policy.min_prompts_per_domain} are needed"
    )
    verdict = PASS if fewest >= policy.min_prompts_per_domain else INCONCLUSIVE
    return Rule("min_prompts_per_domain", verdict, text, float(fewest), threshold=float(policy.min_prompts_per_domain))


def _gain(case: Case, policy: GateConfig, confidence: float) -> Rule:
    return _proved(
        "min_gain",
        lambda: acceptance_gain(case.candidate, case.baseline, confidence),
        policy.min_gain,
        confidence,
        text=f"gain in acceptance rate over the {case.baseline_name}",
        scale=100,
        unit="point",
    )


def _domain(case: Case, domain: str, policy: GateConfig, confidence: float) -> Rule:
    candidate = [item for item in case.candidate if item.domain == domain]
    baseline = [item for item in case.baseline if item.domain == domain]
    if len(candidate) < policy.min_prompts_per_domain:
        return Rule(
            f"domain_margin:{domain}",
            INCONCLUSIVE,
            f"'{domain}' has only {len(candidate)} prompts that neither draft was trained on",
            threshold=-policy.domain_margin,
        )
    return _proved(
        f"domain_margin:{domain}",
        lambda: acceptance_gain(candidate, baseline, confidence),
        -policy.domain_margin,
        confidence,
        text=f"gain in acceptance rate in '{domain}' over the {case.baseline_name}",
        scale=100,
        unit="point",
    )


def _beats_lookup(case: Case, gamma: int, confidence: float) -> Rule:
    lookup = case.prompt_lookup
    if lookup is None:
        return Rule("beats_prompt_lookup", INCONCLUSIVE, "prompt-lookup was not examined", threshold=0.0)
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
) -> Rule:
    """Pass only if the interval's lower bound exceeds the threshold. No verdict, and so no promotion, without a figure."""
    try:
        gain = measure()
    except (ValueError, UnderstudyError) as error:
        return Rule(name, INCONCLUSIVE, f"{text}: no figure ({error})", threshold=threshold)
    finite = gain.low > float("-inf")
    interval = f"[{gain.low * scale:+.2f}, {gain.high * scale:+.2f}]" if finite else "[no interval]"
    shown = f"{text}: {gain.value * scale:+.2f} {unit}s {interval}, {_demand(threshold * scale, unit)}"
    if gain.low > threshold:
        verdict = PASS
    else:
        verdict = FAIL if finite and gain.high <= threshold else INCONCLUSIVE
    low, high = (gain.low, gain.high) if finite else (None, None)
    return Rule(name, verdict, shown, gain.value, low, high, threshold, power_of(gain, threshold, confidence))


def _demand(threshold: float, unit: str) -> str:
    """The condition on the lower bound of a gain, in words."""
    amount = f"{abs(threshold):.2f} {unit}{'' if abs(threshold) == 1 else 's'}"
    return f"lower bound may lose at most {amount}" if threshold < 0 else f"lower bound must be above {amount}"


def _size(draft_bytes: float | None, limit_megabytes: float) -> Rule:
    if draft_bytes is None or not math.isfinite(draft_bytes):
        return Rule("max_draft_megabytes", INCONCLUSIVE, "the draft's size is not known", threshold=limit_megabytes)
    megabytes = draft_bytes / 1e6
    verdict = PASS if megabytes <= limit_megabytes else FAIL
    return Rule(
        "max_draft_megabytes",
        verdict,
        f"draft weights: {megabytes:.2f} MB, at most {limit_megabytes:g} MB allowed",
        megabytes,
        threshold=limit_megabytes,
    )


def _speedup(served: LatencyAtLoad | None, least: float) -> Rule:
    name, text = "min_speedup", "predicted speedup over plain decoding at the stated load"
    if served is None:
        return Rule(name, INCONCLUSIVE, f"{text}: no figure", threshold=least)
    if served.mean is None:
        return Rule(name, FAIL, f"{text}: offered load exceeds capacity with speculation", threshold=least)
    if served.speedup is None:
        return Rule(name, PASS, f"{text}: offered load exceeds the capacity of plain decoding", threshold=least)
    figure = served.speedup
    shown = f"{text}: {figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}], lower bound must be above {least:g}"
    return _bounded(name, shown, figure, figure.low > least, figure.high <= least, least)


def _latency(served: LatencyAtLoad | None, quantile: str, most: float) -> Rule:
    name, text = f"max_latency_seconds:{quantile}", f"predicted {quantile} latency at the stated load"
    if served is not None and served.mean is None:
        return Rule(name, FAIL, f"{text}: offered load exceeds capacity with speculation", threshold=most)
    figure = None if served is None else served.quantiles.get(quantile_of(quantile))
    if figure is None:
        return Rule(name, INCONCLUSIVE, f"{text}: no figure", threshold=most)
    shown = f"{text}: {figure.value:.3g} s [{figure.low:.3g}, {figure.high:.3g}], upper bound must be below {most:g} s"
    return _bounded(name, shown, figure, figure.high < most, figure.low >= most, most)


def _bounded(name: str, text: str, figure: Interval, passes: bool, fails: bool, threshold: float) -> Rule:
    known = math.isfinite(figure.low) and math.isfinite(figure.high)
    verdict = INCONCLUSIVE if not known else PASS if passes else FAIL if fails else INCONCLUSIVE
    low, high = (figure.low, figure.high) if known else (None, None)
    return Rule(name, verdict, text, figure.value, low, high, threshold)


def _memory(serving_bytes: float | None, limit_megabytes: float) -> Rule:
    if serving_bytes is None or not math.isfinite(serving_bytes):
        return Rule(
            "max_memory_megabytes", INCONCLUSIVE, "the memory of the pair is not known", threshold=limit_megabytes
        )
    megabytes = serving_bytes / 1e6
    return Rule(
        "max_memory_megabytes",
        PASS if megabytes <= limit_megabytes else FAIL,
        f"weights and KV cache at the stated batch and context: {megabytes:,.0f} MB, at most {limit_megabytes:g} MB allowed",
        megabytes,
        threshold=limit_megabytes,
    )


def _served_target(examined: Mapping[str, Any], served: ServedTargetConfig) -> Rule:
    """The drafts' figures hold for one target in one number format only."""
    differing = []
    if served.revision is not None and served.revision not in (examined.get("revision"), examined.get("digest")):
        known = examined.get("revision") or examined.get("digest")
        differing.append(f"revision {known} was examined, and {served.revision} is served")
    if served.dtype is not None and served.dtype != examined.get("dtype"):
        differing.append(f"{examined.get('dtype')} was examined, and {served.dtype} is served")
    text = "; ".join(differing) or "the examined target is the one that is served"
    return Rule("served_target", FAIL if differing else PASS, text)


def examination_age(days: float | None, most: int) -> Rule:
    """Old completions say little about today's traffic."""
    name = "max_examination_days"
    if days is None:
        return Rule(name, INCONCLUSIVE, "the age of the completions is not known", threshold=float(most))
    text = f"the completions are {days:.1f} days old, at most {most} allowed"
    return Rule(name, PASS if days <= most else FAIL, text, days, threshold=float(most))


def _crosscheck(agrees: bool | None) -> Rule:
    if agrees is None:
        return Rule("crosscheck", INCONCLUSIVE, "no cross-check by decoding (evaluate.crosscheck_prompts is 0)")
    text = (
        "speculative decoding matches the prediction of the examination"
        if agrees
        else "speculative decoding or the stored log p differs from the examination by more than near-ties"
    )
    return Rule("crosscheck", PASS if agrees else FAIL, text)

"""gate: applies the promotion rules. Chooses the variant of the candidate with the lowest predicted latency at the stated load,
and compares it with the champion, or with the base draft where there is no champion."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pipeline.acceptance.profile import profile_counts
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import checked_profile
from pipeline.config.quantize import Variant
from pipeline.judgement.choice import CHOSEN, Contender, Standing, choose, not_made
from pipeline.judgement.decision import already_champion, decide, without_prompts
from pipeline.judgement.policy import PASS, Case, apply_rules
from pipeline.latency.costs.step_costs import StepCosts, read_step_costs
from pipeline.latency.load.prediction import chosen_lengths, predict
from pipeline.latency.load.schedule import DraftOption, make_schedule
from pipeline.latency.load.serving import latency_at_load, point_at_load
from pipeline.latency.load.workload import Workload, examined_workload, read_workload
from pipeline.models.draft_directory import find_draft, trained_on
from pipeline.models.stored_pair import read_pair
from pipeline.running.context import Outcome, StageContext
from pipeline.running.pair_checks import left_out_variants
from pipeline.running.tasks import UNQUANTIZED, draft_input, examination_input, profile_input
from pipeline.store.files import read_json, write_json
from pipeline.store.row_files import read_head


def run(context: StageContext) -> Outcome:
    """Choose the variant, apply the rules to it and write `decision.json`.

    Inputs: the acceptance profiles of the candidate, of the champion or base draft, and of prompt-lookup, and the step times for
    `gate.load`. A failed rule is no error here: `promote` refuses the draft.
    """
    config, digests = context.config, context.digests
    results = choose(_contenders(context))
    chosen = next(result.name for result in results if result.verdict == CHOSEN)
    has_champion = "champion" in context.inputs
    conditions: dict[str, Any] = {
        "candidate": digests[draft_input(chosen)],
        "variant": chosen,
        "variants": [asdict(result) for result in (*results, *_left_out(context))],
        "baseline": "champion" if has_champion else "base",
        "champion": dict(context.facts["champion"]),
        "gamma": config.evaluate.gamma,
        "confidence": config.evaluate.confidence,
    }
    if conditions["candidate"] == digests.get("champion"):
        decision = already_champion(conditions)
    else:
        seen = trained_on(find_draft(context.inputs[draft_input(chosen)], config.pair))
        if has_champion:
            seen |= trained_on(find_draft(context.inputs["champion"], config.pair))
        whole = _case(context, chosen, has_champion)
        case = _with_latency(context, chosen, without_prompts(whole, seen))
        conditions["dropped_prompts"] = len(whole.candidate) - len(case.candidate)
        decision = decide(apply_rules(case, config.gate, config.evaluate.gamma, config.evaluate.confidence), conditions)
    write_json(context.out / "decision.json", decision)
    return Outcome(_figures(decision), notes={"verdict": decision["verdict"], "reasons": decision["reasons"]})


def _figures(decision: Mapping[str, Any]) -> dict[str, float]:
    figures = {f"rule_{number}_passed": float(rule["verdict"] == PASS) for number, rule in enumerate(decision["rules"])}
    rules = {rule["name"]: rule for rule in decision["rules"]}
    for rule, name in (
        ("min_gain", "acceptance_gain"),
        ("min_speedup", "predicted_speedup"),
        ("max_p95_seconds", "predicted_p95"),
    ):
        if rule in rules and rules[rule]["low"] is not None:
            figures |= {
                name: rules[rule]["figure"],
                f"{name}_low": rules[rule]["low"],
                f"{name}_high": rules[rule]["high"],
            }
    return figures


def _contenders(context: StageContext) -> list[Contender]:
    """All variants of the candidate. One that can be chosen has a draft among the inputs, and step times if there is a load."""
    found = []
    for variant in (UNQUANTIZED, *context.config.quantize.loadable):
        acceptance, timed = _acceptance(context, variant), _timed(context, variant)
        seconds = _seconds(context, variant) if timed and acceptance is not None else None
        found.append(Contender(name=variant, acceptance=acceptance, timed=timed, seconds=seconds))
    return found


def _left_out(context: StageContext) -> list[Standing]:
    """The default variants that the draft cannot have."""
    facts = read_pair(context.inputs["pair"], context.config.pair).facts
    return [not_made(variant, reason) for variant, reason in left_out_variants(facts).items()]


def _timed(context: StageContext, variant: Variant) -> bool:
    return context.config.gate.load is not None and profile_input(variant) in context.inputs


def _acceptance(context: StageContext, variant: Variant) -> float | None:
    head = read_head(context.inputs[examination_input(variant)] / "acceptance.json", "prompts")
    found = (head.get("headline") or {}).get("acceptance_rate", {}).get("value")
    return float(found) if found is not None and np.isfinite(found) else None


def _seconds(context: StageContext, variant: Variant) -> float | None:
    """Predicted mean request latency on dev prompts. With a single contender nothing was examined on dev."""
    examined = context.inputs.get(examination_input(variant, "dev"))
    if examined is None:
        return None
    found = point_at_load(*_serving(context, variant, read_workload(examined))).speculative
    return found.mean if found else None


def _serving(
    context: StageContext, variant: Variant, workload: Workload
) -> tuple[Workload, StepCosts, float, int, int]:
    """The arguments of `point_at_load` and `latency_at_load`: workload, step costs, request rate, batch cap, draft length."""
    load, step_costs = context.config.gate.load, read_step_costs(context.inputs[profile_input(variant)])
    assert load is not None  # callers have checked
    gamma = context.config.evaluate.gamma
    return workload.up_to(step_costs.max_gamma), step_costs, load.requests_per_second, load.max_batch, gamma


def _case(context: StageContext, chosen: Variant, has_champion: bool) -> Case:
    names = {
        "candidate": examination_input(chosen),
        "baseline": "examination_champion" if has_champion else "examination_base",
        "lookup": "examination_lookup",
    }
    profiles, counts = {}, {}
    for role, name in names.items():
        path = context.inputs[name] / "acceptance.json"
        profiles[role] = checked_profile(read_json(path), str(path))
        counts[role] = profile_counts(profiles[role], str(path))
    check = profiles["candidate"].get("crosscheck")
    return Case(
        candidate=counts["candidate"],
        baseline=counts["baseline"],
        baseline_name="champion" if has_champion else "base draft",
        prompt_lookup=counts["lookup"],
        draft_bytes=profiles["candidate"]["draft"].get("bytes"),
        crosscheck_agrees=None if check is None else bool(check["agrees"]),
    )


def _with_latency(context: StageContext, chosen: Variant, case: Case) -> Case:
    """The case with the predicted latency at the stated load, where one is stated."""
    config, load = context.config, context.config.gate.load
    if load is None or not case.candidate:
        return case
    served = None
    if _timed(context, chosen):
        convention = CONVENTIONS[config.evaluate.convention]
        workload = examined_workload(case.candidate, convention, config.evaluate.max_gamma)
        arguments = _serving(context, chosen, workload)
        served = latency_at_load(*arguments, config.evaluate.confidence)
        if arguments[1].plain:
            _plot(context, chosen, *arguments)
    pair = read_pair(context.inputs["pair"], config.pair)
    draft = float("nan") if case.draft_bytes is None else case.draft_bytes
    return replace(case, served=served, serving_bytes=pair.serving_bytes(draft, *config.gate.served))


def _plot(
    context: StageContext, chosen: Variant, workload: Workload, step_costs: StepCosts, _: float, cap: int, gamma: int
) -> None:
    """Figures of the variant at other loads and draft lengths, for people who review the decision."""
    from pipeline.report.latency_predict import plot_prediction
    from pipeline.report.latency_schedule import plot_schedule

    steps_GN = step_costs.steps(cap, round(workload.context), workload.max_gamma)
    plot_prediction(
        predict(workload, step_costs, chosen_lengths(workload, step_costs, cap, gamma), []), context.out / "latency.png"
    )
    plot_schedule(make_schedule([DraftOption(chosen, workload.rounds_G, steps_GN)]), context.out / "draft_lengths.png")

"""gate: pass or fail, never silently. Chooses the form of the candidate that serves the stated load best, and judges it against
the champion, or the stock draft where there is none."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pipeline.acceptance.profile import counts_from_json
from pipeline.acceptance.rounds import CONVENTIONS
from pipeline.acceptance.schema import checked_profile
from pipeline.judgement.choice import CHOSEN, Contender, choose
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
from pipeline.store.files import read_json, write_json
from pipeline.store.row_files import read_head


def run(context: StageContext) -> Outcome:
    config, digests = context.config, context.digests
    standings = choose(_contenders(context))
    chosen = next(one.name for one in standings if one.verdict == CHOSEN)
    baseline = "champion" if "champion" in context.inputs else "stock"
    conditions: dict[str, Any] = {
        "candidate": digests[f"draft_{chosen}"],
        "form": _form(chosen),
        "forms": [asdict(one) for one in standings],
        "baseline": baseline,
        "champion": dict(context.facts["champion"]),
        "gamma": config.evaluate.gamma,
        "confidence": config.evaluate.confidence,
    }
    if conditions["candidate"] == digests.get("champion_draft"):
        decision = already_champion(conditions)
    else:
        seen = trained_on(find_draft(context.inputs[f"draft_{chosen}"], config.pair))
        if baseline == "champion":
            seen |= trained_on(find_draft(context.inputs["champion_draft"], config.pair))
        whole = _case(context, chosen, baseline)
        case = _served(context, chosen, without_prompts(whole, seen))
        conditions["dropped_prompts"] = len(whole.candidate) - len(case.candidate)
        decision = decide(apply_rules(case, config.gate, config.evaluate.gamma, config.evaluate.confidence), conditions)
    write_json(context.out / "decision.json", decision)
    return Outcome(_figures(decision), notes={"verdict": decision["verdict"], "reasons": decision["reasons"]})


def _figures(decision: Mapping[str, Any]) -> dict[str, float]:
    figures = {f"rule_{number}_passed": float(rule["verdict"] == PASS) for number, rule in enumerate(decision["rules"])}
    rules = {rule["name"]: rule for rule in decision["rules"]}
    for rule, name in (
        ("gain", "acceptance_gain"),
        ("predicted_speedup", "predicted_speedup"),
        ("predicted_p95", "predicted_p95"),
    ):
        if rule in rules and rules[rule]["low"] is not None:
            figures |= {
                name: rules[rule]["figure"],
                f"{name}_low": rules[rule]["low"],
                f"{name}_high": rules[rule]["high"],
            }
    return figures


def _form(name: str) -> str:
    return "none" if name == "candidate" else name


def _contenders(context: StageContext) -> list[Contender]:
    """The candidate as it was trained, and its variants; those that may be chosen have a draft to read, and a profile if there is
    a load."""
    found = []
    for name in ("candidate", *context.config.quantize.loadable):
        acceptance, timed = _acceptance(context, name), _timed(context, name)
        seconds = _seconds(context, name) if timed and acceptance is not None else None
        found.append(Contender(name, acceptance, timed, seconds))
    return found


def _timed(context: StageContext, name: str) -> bool:
    return context.config.gate.load is not None and f"profile_{_form(name)}" in context.inputs


def _acceptance(context: StageContext, name: str) -> float | None:
    head = read_head(context.inputs[name] / "acceptance.json", "prompts")
    found = (head.get("headline") or {}).get("acceptance_rate", {}).get("value")
    return float(found) if found is not None and np.isfinite(found) else None


def _seconds(context: StageContext, name: str) -> float | None:
    """Of a mean request on dev prompts; with one contender there is nothing to choose, and nothing was examined on dev."""
    if f"dev-{name}" not in context.inputs:
        return None
    found = point_at_load(*_question(context, name, read_workload(context.inputs[f"dev-{name}"]))).speculative
    return found.mean if found else None


def _question(context: StageContext, name: str, workload: Workload) -> tuple[Workload, StepCosts, float, int, int]:
    """What `at_load` and `serve` are asked of a form: requests, what steps take, load, batch cap, draft length."""
    load, machine = context.config.gate.load, read_step_costs(context.inputs[f"profile_{_form(name)}"])
    assert load is not None  # whoever asks has seen one
    gamma = context.config.evaluate.gamma
    return workload.up_to(machine.max_gamma), machine, load.requests_per_second, load.max_batch, gamma


def _case(context: StageContext, chosen: str, baseline: str) -> Case:
    profiles = {}
    for name in (chosen, baseline, "prompt-lookup"):
        path = context.inputs[name] / "acceptance.json"
        profiles[name] = checked_profile(read_json(path), str(path))
    counts = {name: counts_from_json(profile["prompts"]["deployed"]) for name, profile in profiles.items()}
    check = profiles[chosen].get("crosscheck")
    return Case(
        counts[chosen],
        counts[baseline],
        baseline,
        counts["prompt-lookup"],
        profiles[chosen]["draft"].get("bytes"),
        None if check is None else bool(check["agrees"]),
    )


def _served(context: StageContext, chosen: str, case: Case) -> Case:
    """The case with what the stated load would get, where one is stated."""
    config, load = context.config, context.config.gate.load
    if load is None or not case.candidate:
        return case
    served = None
    if _timed(context, chosen):
        convention = CONVENTIONS[config.evaluate.convention]
        workload = examined_workload(case.candidate, convention, config.evaluate.max_gamma)
        question = _question(context, chosen, workload)
        served = latency_at_load(*question, config.evaluate.confidence)
        if question[1].plain:
            _draw(context, chosen, *question)
    pair = read_pair(context.inputs["pair"], config.pair)
    draft = float("nan") if case.draft_bytes is None else case.draft_bytes
    return replace(case, served=served, serving_bytes=pair.serving_bytes(draft, *config.gate.served))


def _draw(
    context: StageContext, chosen: str, workload: Workload, machine: StepCosts, _: float, cap: int, gamma: int
) -> None:
    """How the form would do at other loads and draft lengths: what people look at before they believe a decision."""
    from pipeline.report.latency_predict import plot_prediction
    from pipeline.report.latency_schedule import plot_schedule

    steps_GN = machine.steps(cap, round(workload.context), workload.max_gamma)
    plot_prediction(
        predict(workload, machine, chosen_lengths(workload, machine, cap, gamma), []), context.out / "latency.png"
    )
    plot_schedule(make_schedule([DraftOption(chosen, workload.rounds_G, steps_GN)]), context.out / "draft_lengths.png")

"""gate: pass or fail, never silently. Judges the candidate against the champion, or the stock draft where there is none."""

from typing import Any

from pipeline.acceptance.profile import counts_from_json
from pipeline.acceptance.schema import checked_profile
from pipeline.artifacts import read_json, write_json
from pipeline.context import Outcome, StageContext
from pipeline.drafts import find_draft, trained_on
from pipeline.judgement.decision import already_champion, decide, without_prompts
from pipeline.judgement.policy import PASS, Case, apply_rules


def run(context: StageContext) -> Outcome:
    config, digests = context.config, context.digests
    baseline = "champion" if "champion" in context.inputs else "stock"
    conditions: dict[str, Any] = {
        "candidate": digests["candidate_draft"],
        "baseline": baseline,
        "champion": dict(context.facts["champion"]),
        "gamma": config.evaluate.gamma,
        "confidence": config.evaluate.confidence,
    }
    if digests["candidate_draft"] == digests.get("champion_draft"):
        decision = already_champion(conditions)
    else:
        seen = trained_on(find_draft(context.inputs["candidate_draft"], config.pair))
        if baseline == "champion":
            seen |= trained_on(find_draft(context.inputs["champion_draft"], config.pair))
        whole = _case(context, baseline)
        case = without_prompts(whole, seen)
        conditions["dropped_prompts"] = len(whole.candidate) - len(case.candidate)
        decision = decide(apply_rules(case, config.gate, config.evaluate.gamma, config.evaluate.confidence), conditions)
    write_json(context.out / "decision.json", decision)
    figures = {f"rule_{number}_passed": float(rule["verdict"] == PASS) for number, rule in enumerate(decision["rules"])}
    gain = next((rule for rule in decision["rules"] if rule["name"] == "gain"), None)
    if gain and gain["low"] is not None:
        figures |= {
            "acceptance_gain": gain["figure"],
            "acceptance_gain_low": gain["low"],
            "acceptance_gain_high": gain["high"],
        }
    return Outcome(figures, notes={"verdict": decision["verdict"], "reasons": decision["reasons"]})


def _case(context: StageContext, baseline: str) -> Case:
    profiles = {}
    for name in ("candidate", baseline, "prompt-lookup"):
        path = context.inputs[name] / "acceptance.json"
        profiles[name] = checked_profile(read_json(path), str(path))
    counts = {name: counts_from_json(profile["prompts"]["deployed"]) for name, profile in profiles.items()}
    check = profiles["candidate"].get("crosscheck")
    return Case(
        counts["candidate"],
        counts[baseline],
        baseline,
        counts["prompt-lookup"],
        profiles["candidate"]["draft"].get("bytes"),
        None if check is None else bool(check["agrees"]),
    )
